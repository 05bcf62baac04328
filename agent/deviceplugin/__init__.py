"""The adapter to the kubelet's device-plugin API: messages, registration, which pod a call is for, and the poller."""
