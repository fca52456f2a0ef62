"""For spark-submit: figures per entity and minute from an event log.

    spark-submit --master spark://head:7077 examples/pipeline/metrics_job.py \
        --from s3a://bucket/events --to s3a://bucket/metrics

Takes the options of `peeklock pipeline metrics`; the other jobs go the same way.
"""

import sys

from peeklock.pipeline.command import pipeline

if __name__ == "__main__":
    pipeline(["metrics", *sys.argv[1:]], prog_name="metrics_job.py")
