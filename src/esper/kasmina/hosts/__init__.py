"""Hosts: networks that come with named places to grow. A new one is one decorated class in one of these files."""

import esper.kasmina.hosts.conv
import esper.kasmina.hosts.mlp
import esper.kasmina.hosts.transformer  # noqa: F401  # importing registers
from esper.kasmina.hosts.registry import Host, build_host, host, host_names

__all__ = ["Host", "build_host", "host", "host_names"]
