"""Kasmina: what grows. Blueprints, slots, their lifecycle and legality, blending, isolation, hosts and grafting."""

from esper.kasmina.blueprints.registry import (
    Blueprint,
    Cost,
    blueprint,
    blueprints_of,
    catalogue_names,
    check_catalogue,
    find_blueprint,
    num_blueprints,
)
from esper.kasmina.export import Folded, emit_source, fold
from esper.kasmina.graft import GraftedModel, graft, graft_again
from esper.kasmina.hosts import Host, build_host, host
from esper.kasmina.lifecycle import (
    EpochEvidence,
    Transitions,
    act,
    begin_epoch,
    check_actions,
    drop_unfinished,
    end_epoch,
    next_alpha,
    plant_fossils,
    settle,
    stage_changes,
)
from esper.kasmina.neighbours import neighbour_correlation
from esper.kasmina.probe import arguments_for, check_initialised
from esper.kasmina.propose import propose_sites
from esper.kasmina.seed_state import leave_out_seeds
from esper.kasmina.sites import Family, Site, SiteShape, Source
from esper.kasmina.snapshot import Snapshot, check_snapshot, restore_snapshot, take_snapshot
from esper.kasmina.sources import Sources
from esper.kasmina.table import NOT_MEASURED, UNLIMITED, ActionMasks, Catalogue, SlotTable, action_masks

__all__ = [
    "NOT_MEASURED",
    "UNLIMITED",
    "ActionMasks",
    "Blueprint",
    "Catalogue",
    "Cost",
    "EpochEvidence",
    "Family",
    "Folded",
    "GraftedModel",
    "Host",
    "Site",
    "SiteShape",
    "SlotTable",
    "Snapshot",
    "Source",
    "Sources",
    "Transitions",
    "act",
    "action_masks",
    "arguments_for",
    "begin_epoch",
    "blueprint",
    "blueprints_of",
    "build_host",
    "catalogue_names",
    "check_actions",
    "check_catalogue",
    "check_initialised",
    "check_snapshot",
    "drop_unfinished",
    "emit_source",
    "end_epoch",
    "find_blueprint",
    "fold",
    "graft",
    "graft_again",
    "host",
    "leave_out_seeds",
    "neighbour_correlation",
    "next_alpha",
    "num_blueprints",
    "plant_fossils",
    "propose_sites",
    "restore_snapshot",
    "settle",
    "stage_changes",
    "take_snapshot",
]
