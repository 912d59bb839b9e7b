"""Measures the service beside other servers and beside what the engine alone could do.

    make bench-serving                     # everything, about 20 minutes on 2 quiet cores
    make bench-serving BENCH=--quick       # one short round of MobileNet, about 3 minutes

In scope: answers a second and latency with 1 and 40 clients, start to first prediction, resident
memory, CPU time of each stage; all servers on this machine, in turn, over several rounds. Out of
scope: the network between machines, GPUs, accuracy. Contenders: this service, complete; a baseline
written the obvious way; LitServe and BentoML with this project's engine; the ceiling (no HTTP).
"""
