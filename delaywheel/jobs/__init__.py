"""Commands of `delaywheel spark` as plain files, for spark-submit."""
