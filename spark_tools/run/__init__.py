"""A run from manifests to its verdict.

    document         the JSON document, as its readers see it
    local            the engine without Spark
    plan             manifests to tasks
    recheck          hours that disagree with the index
    reconcile        tasks to a verdict
    report           JSON document and Parquet tables
    source_options   options of the data source

Imported by hours, page, repair, source and spark.
"""
