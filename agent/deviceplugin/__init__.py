"""The kubelet's device-plugin API: messages to values and back, registration, and the stream of devices."""
