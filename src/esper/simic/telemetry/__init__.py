"""The instruments of a run: alarms, gradients, the policy's memory, debug records, a profiler."""

from esper.simic.telemetry.anomaly_detector import ADVICE, Anomaly, AnomalyDetector, AnomalyKind, SeedEpochs
from esper.simic.telemetry.gradient_collector import (
    GradientEMATracker,
    SeedGradientCollector,
    compute_lstm_health,
    materialize_grad_stats,
)
from esper.simic.telemetry.instruments import Instruments, prepare_profile, profiled, profiler_activities
from esper.simic.telemetry.update_watcher import (
    LEVELS,
    NumericalStabilityReport,
    RatioExplosionDiagnostic,
    TelemetryConfig,
    UpdateWatcher,
)

__all__ = [
    "ADVICE",
    "LEVELS",
    "Anomaly",
    "AnomalyDetector",
    "AnomalyKind",
    "GradientEMATracker",
    "Instruments",
    "NumericalStabilityReport",
    "RatioExplosionDiagnostic",
    "SeedEpochs",
    "SeedGradientCollector",
    "TelemetryConfig",
    "UpdateWatcher",
    "compute_lstm_health",
    "materialize_grad_stats",
    "prepare_profile",
    "profiled",
    "profiler_activities",
]
