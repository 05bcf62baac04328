"""The role `gigaslice scheduler`: an extender of a stock kube-scheduler that decides over single GPUs."""
