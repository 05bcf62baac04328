"""What the kubelet tells: its pod-resources API and its checkpoint. Read, never written."""
