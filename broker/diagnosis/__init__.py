"""What is wrong with a run: findings and the wait graph, drawn from the state. Pure; see README.md."""

from broker.diagnosis.graph import Wait, graph
from broker.diagnosis.rules import RULES, diagnose
from broker.diagnosis.scene import Finding, Severity

__all__ = ["RULES", "Finding", "Severity", "Wait", "diagnose", "graph"]
