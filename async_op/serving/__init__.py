"""What a running job answers over HTTP: probes, metrics, and a page for people."""
