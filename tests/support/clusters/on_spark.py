"""Scenarios on a real Spark with two task slots; its tasks are processes of Python."""

from __future__ import annotations

import os
import sys
from typing import Any

import farandole.spark
from farandole.launch.hosts.horovod_site import HOROVOD_SITE
from tests.support.clusters import scenarios


def horovod_run() -> dict[str, Any]:
    """``horovod.spark.run``, and what it refuses."""
    sys.path.insert(0, HOROVOD_SITE)
    import horovod.spark

    def train(one: int) -> list[Any]:
        import horovod

        return [one, os.environ["HOROVOD_RANK"], os.environ["COLOUR"], horovod.__version__]

    return {
        "run": horovod.spark.run(train, (1,), env={"COLOUR": "blue"}, use_gloo=True, start_timeout=60),
        "one": horovod.spark.run(train, kwargs={"one": 2}, num_proc=1, env={"COLOUR": "red"}),
        "stdout": scenarios.raised(lambda: horovod.spark.run(train, stdout=sys.stdout)),
        "elastic": horovod.spark.run_elastic(train, (3,), num_proc=2, env={"COLOUR": "green"}, start_timeout=60),
        "too_few": scenarios.raised(lambda: horovod.spark.run_elastic(train, (3,), num_proc=1, min_num_proc=2)),
    }


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        scenarios.play(farandole.spark.run, 2)
        scenarios.show("horovod", **horovod_run())
    finally:
        spark.stop()
