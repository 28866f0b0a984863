from __future__ import annotations

from tests.spark.conftest import java

__all__ = ["java"]
