"""A run from manifests to its verdict.

    document         the JSON document, as its readers see it
    join_check       the same counts by joins
    join_queries     the SQL of these joins
    local            the engine without Spark
    plan             manifests to tasks
    recheck          hours that disagree with the index
    reconcile        tasks to a verdict
    report           JSON document and Parquet tables
    source_options   options of the data source

Imported by hours, page, repair, source and spark.
"""
