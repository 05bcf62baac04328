# SPDX-License-Identifier: Apache-2.0
"""The tables of pages in docs, made from the code they describe.

python -m tests.unit.docs.tables            into the pages, between the comments that name them (make tables)
python -m tests.unit.docs.tables --check    whether the pages have them
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from agent import config
from agent.health.xids import XIDS, XidEffect
from agent.telemetry.metrics import METRICS
from deploy.generated import write_or_check
from gigaslice.core.dataset.request import ATTRIBUTES
from gigaslice.core.kube.reasons import REASONS
from gigaslice.core.model.annotations import ANNOTATIONS
from gigaslice.core.model.options import PREFIX
from gigaslice.core.rewrite.names import NAMES
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.metrics import METRICS as CONTROLLER_METRICS
from gigaslice.roles.dataset_node.events import EVENTS as DATASET_EVENTS
from gigaslice.roles.dataset_node.metrics import METRICS as DATASET_METRICS
from gigaslice.roles.dataset_node.settings import DatasetSettings
from gigaslice.roles.driver_limits.settings import DriverLimitSettings
from gigaslice.roles.scheduler.metrics import METRICS as SCHEDULER_METRICS
from gigaslice.roles.scheduler.settings import SchedulerSettings
from gigaslice.runtime.settings import Setting
from gigaslice.runtime.settings import table as settings_of
from gigaslice_cli import frame
from tests.unit.docs import accounts, licences
from tests.unit.docs.page_tables import markdown, rendered
from tests.unit.docs.sentences import sentences_of
from vcuda import cli as vcuda_cli

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = (
    DOCS / "reference.md",
    DOCS / "operations.md",
    DOCS / "datasets.md",
    DOCS / "rights.md",
    DOCS / "explain.md",
    DOCS / "threat-model.md",
    DOCS / "licences.md",
    DOCS / "coming-over.md",
)


def node_settings() -> str:
    """Every setting of `gigaslice node` in its three spellings."""
    return settings_table(config.SETTINGS)


def controller_settings() -> str:
    """Every setting of `gigaslice controller` in its three spellings."""
    return settings_table(settings_of(ControllerConfig))


def scheduler_settings() -> str:
    """Every setting of `gigaslice scheduler` in its three spellings."""
    return settings_table(settings_of(SchedulerSettings))


def driver_limit_settings() -> str:
    """Every setting of `gigaslice driver-limits` in its three spellings."""
    return settings_table(settings_of(DriverLimitSettings))


def settings_table(found: Iterable[Setting]) -> str:
    """Settings of a role in their three spellings."""
    rows = [
        (f"`--{f.flag}` {f.metavar}", f"`{f.variable}`", f"`{f.key}`", f"`{f.default}`", f.help)
        for f in found
    ]
    return markdown(("flag", "environment", "file", "default", "meaning"), rows)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a command's subcommands, by name; those of subcommands too, as "dataset pack"."""
    (found,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    parsers = dict(found.choices)
    for name, one in found.choices.items():
        if any(isinstance(action, argparse._SubParsersAction) for action in one._actions):
            parsers |= {f"{name} {inner}": below for inner, below in subcommands(one).items()}
    return parsers


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Options and arguments of a parser with what they mean; --help is the same everywhere and left out."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        value = action.metavar if isinstance(action.metavar, str) and action.nargs != 0 else ""
        value = f"[{value}]" if action.nargs == "?" else value
        yield f"`{' '.join([*action.option_strings[:1], value]).strip()}`", action.help or ""


def vcuda_options() -> str:
    """Every option of every `vcuda` command."""
    parsers = subcommands(vcuda_cli.make_parser())
    rows = [(f"`vcuda {name}`", *pair) for name, parser in parsers.items() for pair in options(parser)]
    return markdown(("command", "option", "meaning"), rows)


def status_options() -> str:
    """The options of `gigaslice status`."""
    return markdown(("option", "meaning"), options(subcommands(frame.make_parser())["status"]))


def topology_options() -> str:
    """The options of `gigaslice topology`."""
    return markdown(("option", "meaning"), options(subcommands(frame.make_parser())["topology"]))


def annotations() -> str:
    """Every annotation of a pod with its other names."""
    rows = [
        (
            f"`{PREFIX}{row.name}`",
            row.form,
            row.meaning,
            ", ".join(f"`{alias}`" for alias in row.aliases) or "-",
        )
        for row in ANNOTATIONS
    ]
    return markdown(("annotation", "example", "meaning", "also taken"), rows)


def rights() -> str:
    """Every annotation of a pod with what everybody may write and what needs a label of the Namespace."""
    rows = []
    for row in ANNOTATIONS:
        names = ", ".join(f"`{name}`" for name in (PREFIX + row.name, *row.aliases))
        if row.option.free_up_to is not None:
            free = f"up to the chart's `admission.freeCores` ({row.option.free_up_to})"
        elif row.option.free_values is not None:
            free = " and ".join(f"`{text}`" for text in row.option.free_values)
        else:
            rows.append((names, "everything", "-"))
            continue
        rows.append((names, free, f"`{row.option.namespace_label}`"))
    return markdown(("annotation", "everybody may write", "label of the Namespace for all else"), rows)


def cordon_options() -> str:
    """The options and arguments of `gigaslice cordon` and `gigaslice uncordon`."""
    parsers = subcommands(frame.make_parser())
    rows = [
        (f"`gigaslice {name}`", *pair) for name in ("cordon", "uncordon") for pair in options(parsers[name])
    ]
    return markdown(("command", "option", "meaning"), rows)


def resize_options() -> str:
    """The options of `gigaslice resize`."""
    return markdown(("option", "meaning"), options(subcommands(frame.make_parser())["resize"]))


def options_of(command: str) -> Callable[[], str]:
    """The options of a command of gigaslice."""
    return lambda: markdown(("option", "meaning"), options(subcommands(frame.make_parser())[command]))


def doctor_options() -> str:
    """The options of `gigaslice doctor` that are no settings of the agent."""
    settings = {f"`--{one.flag}" for one in config.SETTINGS} | {"`--config"}
    rows = options(subcommands(frame.make_parser())["doctor"])
    return markdown(
        ("option", "meaning"), [row for row in rows if row[0].partition(" ")[0].rstrip("`") not in settings]
    )


def metrics() -> str:
    """Every metric of the agent."""
    rows = [
        (f"`{row.name}`", row.kind, ", ".join(f"`{label}`" for label in row.labels) or "-", row.help)
        for row in METRICS
    ]
    return markdown(("metric", "kind", "labels besides `node`", "meaning"), rows)


def controller_metrics() -> str:
    """Every metric of the controller."""
    rows = [
        (f"`{row.name}`", row.kind, ", ".join(f"`{label}`" for label in row.labels) or "-", row.help)
        for row in CONTROLLER_METRICS
    ]
    return markdown(("metric", "kind", "labels", "meaning"), rows)


def scheduler_metrics() -> str:
    """Every metric of the scheduler service."""
    return markdown(("metric", "meaning"), [(f"`{row.name}`", row.help) for row in SCHEDULER_METRICS])


def dataset_settings() -> str:
    """Every setting of `gigaslice dataset` in its three spellings."""
    return settings_table(settings_of(DatasetSettings))


def dataset_metrics() -> str:
    """Every metric of the dataset service."""
    return markdown(("metric", "meaning"), [(f"`{row.name}`", row.help) for row in DATASET_METRICS])


def dataset_attributes() -> str:
    """Every attribute of a dataset volume."""
    return markdown(("attribute", "meaning"), [(f"`{name}`", text) for name, text in ATTRIBUTES.items()])


def dataset_events() -> str:
    """Every event of the dataset service."""
    rows = [(f"`{row.name}`", row.kind, row.meaning) for row in DATASET_EVENTS]
    return markdown(("event", "type", "meaning"), rows)


def rewritten_names() -> str:
    """Every name of other projects that `gigaslice rewrite` understands."""
    rows = [(f"`{row.name}`", row.owner, row.place.value, row.becomes) for row in NAMES]
    return markdown(("name", "whose", "what", "becomes"), rows)


def events() -> str:
    """Every reason of an event on a pod."""
    rows = [(f"`{row.name}`", row.kind, row.meaning) for row in REASONS]
    return markdown(("event", "kind", "meaning"), rows)


def xids() -> str:
    """Every Xid that the agent knows, by what it does about it."""
    rows = []
    for effect in XidEffect:
        of_it = [row for row in XIDS.values() if row.effect is effect]
        by_meaning: dict[str, list[int]] = {}
        for row in of_it:
            by_meaning.setdefault(row.meaning, []).append(row.number)
        text = "; ".join(f"{', '.join(map(str, n))} {meaning}" for meaning, n in by_meaning.items())
        rows.append((f"`{effect.value}`", "yes" if effect.fatal else "no", text))
    return markdown(("effect", "GPU unhealthy", "Xids"), rows)


def sentences(*paths: str, functions: tuple[str, ...] = ()) -> Callable[[], str]:
    """The sentences of modules as a list; backticks in them would end the code that they are printed as."""

    def as_list() -> str:
        texts = sentences_of(*paths, functions=functions)
        return "".join(f"* `{text.replace('`', chr(39))}`\n" for text in texts)

    return as_list


def account_rights() -> str:
    """What each account of the chart may do at the API server."""
    return markdown(("account", "where", "API group", "objects", "may"), accounts.rows())


def image_licences() -> str:
    """The Python packages of the image with their licences."""
    return markdown(("package", "licence"), licences.rows())


VIEWS, CLUSTER = "gigaslice/core/views", "gigaslice/core/cluster"
TABLES: dict[str, Callable[[], str]] = {
    "annotations": annotations,
    "rights of annotations": rights,
    "rights at the API server": account_rights,
    "licences of the image's packages": image_licences,
    "gigaslice node": node_settings,
    "gigaslice controller": controller_settings,
    "metrics of the controller": controller_metrics,
    "gigaslice scheduler": scheduler_settings,
    "gigaslice driver-limits": driver_limit_settings,
    "gigaslice dataset": dataset_settings,
    "metrics of the dataset service": dataset_metrics,
    "attributes of a dataset volume": dataset_attributes,
    "events of the dataset service": dataset_events,
    "metrics of the scheduler": scheduler_metrics,
    "gigaslice doctor": doctor_options,
    "gigaslice status": status_options,
    "gigaslice topology": topology_options,
    "gigaslice explain": options_of("explain"),
    "gigaslice exec": options_of("exec"),
    "gigaslice nodes": options_of("nodes"),
    "gigaslice top": options_of("top"),
    "gigaslice rewrite": options_of("rewrite"),
    "rewritten names": rewritten_names,
    "gigaslice cordon": cordon_options,
    "gigaslice resize": resize_options,
    "gigaslice dataset pack": options_of("dataset pack"),
    "gigaslice dataset prefetch": options_of("dataset prefetch"),
    "gigaslice dataset ps": options_of("dataset ps"),
    "gigaslice dataset evict": options_of("dataset evict"),
    "gigaslice dataset wait": options_of("dataset wait"),
    "sentences of the answer": sentences(f"{VIEWS}/explain.py"),
    "sentences of requests": sentences(f"{VIEWS}/wording.py"),
    "sentences of nodes": sentences(f"{VIEWS}/node_lines.py"),
    "sentences of GPUs": sentences(f"{CLUSTER}/report.py"),
    "sentences of help": sentences(f"{VIEWS}/suggestions.py", f"{VIEWS}/move_lines.py"),
    "sentences of mistakes": sentences(f"{CLUSTER}/demand.py", "gigaslice/core/model/options.py"),
    "sentences of the command": lambda: "".join(
        (
            sentences("gigaslice/cluster_commands/explain.py", functions=("run", "_pod_name"))(),
            sentences("gigaslice/cluster_commands/cluster.py")(),
        )
    ),
    "sentences of access": sentences(
        *(f"gigaslice/kubeapi/{module}.py" for module in ("access", "kubeconfig", "failures", "client"))
    ),
    "events": events,
    "metrics": metrics,
    "xids": xids,
    "vcuda": vcuda_options,
}


def made() -> dict[Path, str]:
    """The text of every page that has a table."""
    return {page: rendered(page.read_text(encoding="utf-8"), TABLES) for page in PAGES}


if __name__ == "__main__":
    sys.exit(write_or_check(made, "tables", __doc__))
