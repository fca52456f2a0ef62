"""`python -m peeklock.pipeline JOB ...`, and the file to give to spark-submit."""

from peeklock.pipeline.command import pipeline

if __name__ == "__main__":
    pipeline(prog_name="peeklock pipeline")
