# SPDX-License-Identifier: Apache-2.0
"""The role `gigaslice scheduler`: an extender of a stock kube-scheduler that decides over single GPUs."""
