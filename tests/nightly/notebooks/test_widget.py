"""The live view inside of JupyterLab: its data and orders go by the kernel."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.launching import run_to_end
from tests.support.monitor.page import CHROMIUM, browser, picture, press_stop
from tests.support.notebook.lab import Lab, opened, run_cell
from tests.support.paths import ROOT

STATIC = ROOT / "src" / "farandole" / "monitor" / "static"

HAS_SUBSHELLS = int(importlib.metadata.version("ipykernel").split(".")[0]) >= 7

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
    pytest.mark.skipif(
        not (STATIC / "live.js").exists(), reason="the page is not bundled: make setup, with npm reachable"
    ),
]

TRAIN = """
import farandole

def train():
    import time
    import numpy as np
    import farandole.numpy as hvd
    from farandole.numpy.elastic import ObjectState, run
    hvd.init()

    @run
    def until(state):
        gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
        while state.step < 10**6:
            gradients([np.ones(3, np.float32)])
            state.step += 1
            hvd.log(loss=2 / (1 + state.step) + 0.1 * hvd.rank())
            time.sleep(0.01)
            state.commit()
        return state.step

    return until(ObjectState(step=0))

job = farandole.launch(train, np=2)
job.widget
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    started = Lab(tmp_path_factory.mktemp("lab"))
    yield started
    started.close()


@pytest.fixture
def page(lab: Lab) -> Iterator[Any]:
    with browser() as chromium:
        context = chromium.new_context(viewport={"width": 1280, "height": 1400})
        context.set_default_timeout(60_000)
        yield context.new_page()
        context.close()


def curve(cell: Any) -> None:
    """Wait for the curve of the loss, which is drawn as soon as it is seen."""
    cell.locator("[data-name=loss]").scroll_into_view_if_needed()
    cell.locator("[data-name=loss] canvas").wait_for()


def with_more_and_less(page: Any, view: Any) -> Any:
    """Have a view show all, and one that takes its place show less again, as what was chosen holds for that, too."""
    view.get_by_role("button", name="more").click()
    view.locator(".output").wait_for()
    view.locator(".events").wait_for()
    assert len(shown(view)) > 1
    picture(page, "lab-more")
    view = run_cell(page, 1)
    view.get_by_role("button", name="less").click()
    view.locator(".output").wait_for(state="hidden")
    return view


def shown(cell: Any) -> list[str]:
    """Names of the charts that a view shows."""
    return [str(each.get_attribute("data-name")) for each in cell.locator(".chart:visible").all()]


def news(cell: Any, begin: str) -> str:
    cell.locator(".news", has_text=begin).wait_for()
    return str(cell.locator(".news").text_content())


def test_a_training_is_watched_paused_resized_and_stopped_in_jupyterlab(lab: Lab, page: Any) -> None:
    wait = "import time\nwhile not job.done:\n    time.sleep(0.05)"
    if not HAS_SUBSHELLS:
        wait = "try:\n    job.result()\nexcept Exception as error:\n    print(type(error).__name__)"
    lab.write("live.ipynb", [TRAIN, "job.widget", wait, "print('done', job.done)"])
    opened(page, lab.link("live.ipynb"))
    first = run_cell(page, 0)
    curve(first)
    first.locator(".facts", has_text=re.compile(r"step [\d,]{3}")).wait_for()
    assert shown(first) == ["loss"], "beside cells there is room for one chart"
    picture(page, "lab")
    first.get_by_role("button", name="pause").click()
    paused = news(first, "paused at step")
    first.locator(".pill", has_text="paused").wait_for()
    # A view that comes later gets all of it; both are told what becomes of orders.
    second = run_cell(page, 1)
    second.locator(".pill", has_text="paused").wait_for()
    curve(second)
    second = with_more_and_less(page, second)
    assert shown(first) == ["loss"]
    second.get_by_role("button", name="resume").click()
    assert news(second, "resumed at step").split()[-1] == paused.split()[-1]
    news(first, "resumed at step")
    second.get_by_label("number of workers").fill("3")
    second.get_by_role("button", name="resize").click()
    first.locator(".facts", has_text="3 ranks").wait_for()
    second.get_by_label("number of workers").fill("0")
    # While a cell runs curves go on, and buttons work: in any cell by a subshell, else in one that waits for the job.
    run_cell(page, 2)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=busy]").wait_for()
    step = first.locator(".facts").text_content()
    page.wait_for_function("([a, b]) => a.textContent !== b", arg=[first.locator(".facts").element_handle(), step])
    curve(first)
    picture(page, "lab-busy")
    press_stop(first)
    news(first, "stopped at step")
    first.locator(".jp-OutputArea-output img").first.wait_for()
    done = run_cell(page, 3)
    done.locator(".jp-OutputArea-output", has_text="done True").wait_for()
    picture(page, "lab-ended")


def test_a_saved_notebook_keeps_a_picture_of_the_end_and_no_key(lab: Lab, page: Any) -> None:
    spy = "text = job.link_file.read_text()\nopen('key.txt', 'w').write(text.split('#key=')[1].strip())"
    wait = "import os, time\nwhile not os.path.exists(job.link_file):\n    time.sleep(0.05)\n" + spy
    path = lab.write("kept.ipynb", [TRAIN.replace("10**6", "300"), wait, "job.result()"])
    command = [sys.executable, "-W", "default", "-c", "from nbclient.cli import main; main()", "--inplace", path.name]
    run_to_end(command, lab.folder, 150.0, {"IPYTHONDIR": str(lab.folder / "ipython")}).ok()
    key, text = (lab.folder / "key.txt").read_text(), path.read_text()
    assert len(key) > 40
    assert key not in text
    [output] = json.loads(text)["cells"][0]["outputs"]
    assert set(output["data"]) == {"image/png", "text/plain"}
    assert "ended well: step 300, 2 ranks" in "".join(output["data"]["text/plain"])
    page.goto(lab.link(path.name))  # not trusted, as somebody else has run it
    image = page.locator(".jp-OutputArea-output img").first
    image.wait_for()
    image.scroll_into_view_if_needed()
    picture(page, "lab-kept")


ATTACH = """
import logging
import ipyparallel as ipp
import farandole.notebook
cluster = ipp.Cluster(engines="farandole", n=2, log_level=logging.ERROR)
ranks = farandole.notebook.attach(cluster.start_and_connect_sync())
ranks.widget
"""
PX = """%%px
import time
import numpy as np
import farandole.numpy as hvd
hvd.init()
gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
for step in range(10**6):
    gradients([np.ones(3, np.float32)])
    hvd.log(loss=2 / (1 + step) + 0.1 * hvd.rank())
    time.sleep(0.01)
"""


def test_engines_are_watched_and_their_cell_is_stopped_in_jupyterlab(lab: Lab, page: Any) -> None:
    lab.write("ranks.ipynb", [ATTACH, PX, "cluster.stop_cluster_sync()\nprint('all', 'over')"])
    opened(page, lab.link("ranks.ipynb"))
    view = run_cell(page, 0)
    view.locator(".pill", has_text="between cells").wait_for()
    assert view.get_by_role("button", name="stop").is_disabled()
    cell = run_cell(page, 1)
    curve(view)
    picture(page, "lab-ranks")
    press_stop(view)
    step = news(view, "stopped at step").split()[-1].replace(",", "")
    cell.locator(".jp-OutputArea-output", has_text=f"has stopped all ranks after step {step}").first.wait_for()
    view.locator(".pill", has_text="between cells").wait_for()
    picture(page, "lab-between-cells")
    run_cell(page, 2).locator(".jp-OutputArea-output", has_text="all over").wait_for()
    view.locator(".jp-OutputArea-output img").first.wait_for()
