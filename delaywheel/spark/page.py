"""`delaywheel spark page`: the page of a run that was made before."""

from pathlib import Path

import click

from delaywheel.shared.options import option
from delaywheel.spark.verdicts import Verdicts, extra_required


@click.command(cls=Verdicts)
@click.argument(
    "result", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="RESULT"
)
@option("--output FILE", "The HTML file to write.", required=True)
def page(*, result: Path, output: Path) -> None:
    """Make the HTML page of a result that `spark reconcile --output` wrote.

    Ends with exit code 0 if there is a page, whatever the result says; 3 otherwise.

    \b
    Example:
      delaywheel spark page result.json --output result.html
    """
    with extra_required():
        from spark_tools.files.outputs import Output
        from spark_tools.page.page import page as html_of
        from spark_tools.run.document import read_document
    with Output(output) as file:
        file.write(html_of(read_document(result)).encode())
