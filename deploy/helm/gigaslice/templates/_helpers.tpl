{{- define "gigaslice.name" -}}
{{- if contains "gigaslice" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-gigaslice" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gigaslice.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "gigaslice.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "gigaslice.labels" -}}
app.kubernetes.io/name: gigaslice
{{- if ne .Release.Name "gigaslice" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- end -}}

{{- /* A setting's flag: stateDir is --state-dir. */ -}}
{{- define "gigaslice.args" -}}
- node
{{- range $key, $value := .Values.settings }}
- {{ printf "--%s=%v" (regexReplaceAll "([A-Z])" $key "-$1" | lower) $value | quote }}
{{- end }}
{{- if ne .Values.kubeletDir "/var/lib/kubelet" }}
- --kubelet-dir={{ .Values.kubeletDir }}/device-plugins
- --pod-resources={{ .Values.kubeletDir }}/pod-resources/kubelet.sock
{{- end }}
{{- if ne .Values.stateDir "/var/lib/gigaslice" }}
- --state-dir={{ .Values.stateDir }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}
