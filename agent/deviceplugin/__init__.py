# SPDX-License-Identifier: Apache-2.0
"""The adapter to the kubelet's device-plugin API: messages, registration, which pod a call is for, and the poller."""
