"""Scenarios on a real Spark with two task slots; its tasks are processes of Python."""

from __future__ import annotations

import os
import sys

import farandole.spark
from tests.clusters import scenarios

if __name__ == "__main__":
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        scenarios.play(farandole.spark.run, 2)
    finally:
        spark.stop()
