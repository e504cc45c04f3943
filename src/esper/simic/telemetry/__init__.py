"""Diagnostics of the learning itself: alarms, gradients, the policy's memory, debug records, a profiler."""

from esper.simic.telemetry.anomaly_detector import (
    ADVICE,
    Anomaly,
    AnomalyDetector,
    AnomalyKind,
    AnomalyReport,
    SeedEpochs,
)
from esper.simic.telemetry.gradient_collector import (
    AsyncGradientStats,
    GradientDrift,
    GradientEMATracker,
    GradientHealth,
    LSTMHealth,
    SeedGradientCollector,
    compute_lstm_health,
    materialize_grad_stats,
)
from esper.simic.telemetry.profiler import prepare_profile, profiled, profiler_activities
from esper.simic.telemetry.update_watcher import (
    DEFAULT_ESCALATION,
    LEVELS,
    NumericalStabilityReport,
    RatioExplosionDiagnostic,
    TelemetryConfig,
    UpdateWatcher,
)

__all__ = [
    "ADVICE",
    "DEFAULT_ESCALATION",
    "LEVELS",
    "Anomaly",
    "AnomalyDetector",
    "AnomalyKind",
    "AnomalyReport",
    "AsyncGradientStats",
    "GradientDrift",
    "GradientEMATracker",
    "GradientHealth",
    "LSTMHealth",
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
