"""The data source of Spark.

    manifests   manifests of directories and files
    parts       what is read of which file
    reader      parts as tables
    source      `spark.read.format("delaywheel")`

Imported by pyspark_delaywheel.
"""
