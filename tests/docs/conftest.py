from __future__ import annotations

from tests.spark.conftest import java, spark

__all__ = ["java", "spark"]
