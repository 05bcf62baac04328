{{- /* Parts of the agents' pods: what also stands in a manifest of its own (deploy/claims-node.yaml, deploy/driver-limits.yaml). */ -}}

{{- define "gigaslice.nvmlOnly" -}}
# Read by the NVIDIA runtime: all GPUs for this container, but of the driver only NVML (no CUDA).
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- end -}}

{{- define "gigaslice.claimMounts" -}}
# Written: the sockets by which the kubelet finds and calls the driver, and what the runtime gives to containers.
- name: plugins-registry
  mountPath: {{ .Values.kubeletDir }}/plugins_registry
- name: plugin
  mountPath: {{ .Values.kubeletDir }}/plugins/gigaslice.io
- name: cdi
  mountPath: /var/run/cdi
{{- end -}}

{{- define "gigaslice.claimVolumes" -}}
- name: plugins-registry
  hostPath:
    path: {{ .Values.kubeletDir }}/plugins_registry
    type: Directory
- name: plugin
  hostPath:
    path: {{ .Values.kubeletDir }}/plugins/gigaslice.io
    type: DirectoryOrCreate
- name: cdi
  hostPath:
    path: /var/run/cdi
    type: DirectoryOrCreate
{{- end -}}

{{- define "gigaslice.driverLimitsMount" -}}
# The socket of the container driver-limits.
- name: driver-limits
  mountPath: /run/gigaslice/driver-limits
{{- end -}}

{{- define "gigaslice.driverLimitsContainer" -}}
# Sets the driver's own memory limits of pods' cgroups, as the agent says over the socket. It decides nothing.
- name: driver-limits
  image: "{{ include "gigaslice.image" . }}"
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: ["driver-limits"]
  env:
    {{- include "gigaslice.nvmlOnly" . | nindent 4 }}
  resources:
    {{- toYaml .Values.driverLimits.resources | nindent 4 }}
  securityContext:
    # The agent's socket and pods' cgroups are root's.
    runAsUser: 0
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    seccompProfile:
      type: RuntimeDefault
    capabilities:
      drop: ["ALL"]
      add:
        # Asked for by the driver where a limit is set. Used once more at the start, to leave the pod's network.
        - SYS_ADMIN
  volumeMounts:
    # The socket that the agent speaks to. Its directory is the pod's own: of two agents on a node each has its helper.
    - name: driver-limits
      mountPath: /run/gigaslice/driver-limits
    # The host's tree, to find pods' cgroups in; limits are set by their paths. Take readOnly out where doctor names
    # the backend dmem, whose files are written.
    - name: cgroups
      mountPath: /sys/fs/cgroup
      {{- if not .Values.driverLimits.cgroupWritable }}
      readOnly: true
      {{- end }}
{{- end -}}

{{- define "gigaslice.driverLimitsVolumes" -}}
- name: driver-limits
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
- name: cgroups
  hostPath:
    path: /sys/fs/cgroup
    type: Directory
{{- end -}}
