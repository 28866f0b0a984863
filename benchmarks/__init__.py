"""Speed, as ratios within one run against a floor: the least that any implementation must do."""
