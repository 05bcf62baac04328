# SPDX-License-Identifier: Apache-2.0
"""The node agent on this GPU, with the kubelet stand-in: the demo's story, all claims of it. Argument: the
folder that was brought along, with `demo-client` and `site` (packages that this Python lacks); "-":
everything is here.
"""

import os
import shutil
import sys
from pathlib import Path

PACK = Path(sys.argv[1])
ROOT = Path(__file__).resolve().parents[3]
SITE = PACK / "site"
sys.path[:0] = [str(ROOT), *([str(SITE)] if SITE.is_dir() else [])]

from driver import done, say  # noqa: E402

from tests.demo import __main__ as demo  # noqa: E402
from tests.demo import clients, stage  # noqa: E402
from tests.demo.report import Report  # noqa: E402

claims = []
told = Report.claim
tool_env, run_in = stage.Stage.tool_env, stage.Stage.run_in
build = clients.build


def claim(self, text, holds, evidence=""):
    """Every claim goes into the numbers as well."""
    claims.append([bool(holds), str(text), str(evidence)[:200]])
    say(claims=claims)
    return told(self, text, holds, evidence)


def with_site(self):
    """The agent finds the packages too."""
    env = tool_env(self)
    return env | {"PYTHONPATH": os.pathsep.join((env["PYTHONPATH"], str(SITE)))} if SITE.is_dir() else env


def run_with_site(self, pod, *command):
    """So do the programs of others in the pods."""
    return (
        run_in(self, pod, "/usr/bin/env", f"PYTHONPATH={SITE}", *command)
        if SITE.is_dir()
        else run_in(self, pod, *command)
    )


def ready_made(directory):
    """The client that was compiled elsewhere, in the place where it would have been compiled."""
    brought = PACK / "demo-client"
    if not brought.exists():
        return build(directory)
    target = directory / "client"
    shutil.copy2(brought, target)
    return target


Report.claim, clients.build = claim, ready_made
stage.Stage.tool_env, stage.Stage.run_in = with_site, run_with_site
options = ["--simulate"] if "FAKEDRIVER_MACHINE" in os.environ else []
code = demo.tell(demo.parse([*options, "--prefix", "gigaslice-gpu-"]))
say(code=code, held=sum(one[0] for one in claims), all=len(claims))
done()
