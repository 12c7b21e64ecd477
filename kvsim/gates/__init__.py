"""Gates: reasons beside room and budget for which the scheduler lets a request wait, or gives it fewer tokens."""
