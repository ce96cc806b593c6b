"""The probe that every executor answers before a run opens."""
