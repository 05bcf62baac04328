# SPDX-License-Identifier: Apache-2.0
"""`make demo`: a node, its kubelet, pods with slices of a GPU and real programs in them, every claim checked.

machine: which GPU there is and how much of it the demo may ask for · stage: node agent, kubelet stand-in and the
compiled client, put up and taken down · clients: programs in pods that are told what to do · report: what is
printed and counted · story: what happens, in order · __main__: the command.
"""
