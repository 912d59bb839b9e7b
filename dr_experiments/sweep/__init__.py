"""Sweeps: deploy, measure and remove a set of deployments, one after the other, resumable.

`plan` says what is measured, in which order and with which limits; `journal` is the only memory
of what was done; `spending` bounds what it may cost; `runner` carries a plan out; `watcher`
removes what a run that was killed left deployed.
"""
