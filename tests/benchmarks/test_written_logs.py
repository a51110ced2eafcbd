"""What benchmarks write for those that read logs, is read: all of it, with nothing wrong."""

from pathlib import Path

import pyarrow as pa

from benchmarks.reconciling import write_logs
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, make_plan
from spark_tools.run.reconcile import Verdict, reconcile
from spark_tools.source.manifests import source_of_file


def test_all_that_was_written_reconciles(tmp_path: Path) -> None:
    manifest = write_logs(tmp_path, 100_000)
    found: list[pa.Table] = []
    plan = make_plan([source_of_file(f"{manifest}={tmp_path}")], Request())
    result = reconcile(plan, local_engine(1), found.append)
    assert (result.verdict, result.problems) == (Verdict.CLEAN, [])
    [group] = result.groups
    assert group.account.totals["delivered"] == 100_000
