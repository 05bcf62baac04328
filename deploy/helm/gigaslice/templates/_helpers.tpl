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

{{- /* A setting as text. YAML makes true and false of a plain on and off, and Helm a floating point number of each. */ -}}
{{- define "gigaslice.text" -}}
{{- if kindIs "bool" . -}}
{{- ternary "on" "off" . -}}
{{- else if and (kindIs "float64" .) (eq (floor .) (float64 .)) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- /* "off" for a setting that is turned off in any of the ways that the agent takes, else its text. */ -}}
{{- define "gigaslice.switch" -}}
{{- $text := include "gigaslice.text" . -}}
{{- if has (lower $text) (list "off" "false" "no") -}}off
{{- else if has (lower $text) (list "on" "true" "yes") -}}on
{{- else -}}
{{- $text -}}
{{- end -}}
{{- end -}}

{{- /* Where metrics are served. */ -}}
{{- define "gigaslice.metrics" -}}
{{- if hasKey .Values.settings "metricsAddress" -}}
{{- include "gigaslice.switch" .Values.settings.metricsAddress -}}
{{- else -}}
:9445
{{- end -}}
{{- end -}}

{{- /* "yes" when the agent asks the API server for anything. */ -}}
{{- define "gigaslice.asksApi" -}}
{{- $setting := get .Values.settings "kubeApi" -}}
{{- if not (or (eq (include "gigaslice.switch" $setting) "off") (has "--kube-api=off" .Values.extraArgs)) -}}yes{{- end -}}
{{- end -}}

{{- /* "yes" when the agent may evict pods. */ -}}
{{- define "gigaslice.evicts" -}}
{{- if kindIs "bool" .Values.rbac.evict -}}
{{- ternary "yes" "" .Values.rbac.evict -}}
{{- else -}}
{{- $modes := list (toString .Values.settings.overuse) -}}
{{- $before := "" -}}
{{- range .Values.extraArgs -}}
{{- $modes = append $modes (ternary . (trimPrefix "--overuse=" .) (eq $before "--overuse")) -}}
{{- $before = . -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if eq .name "GIGASLICE_OVERUSE" -}}{{- $modes = append $modes (toString .value) -}}{{- end -}}
{{- end -}}
{{- if or (has "evict" $modes) (has "dry-run" $modes) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A setting's flag: stateDir is --state-dir. */ -}}
{{- define "gigaslice.args" -}}
- node
{{- range $key, $value := .Values.settings }}
- {{ printf "--%s=%s" (regexReplaceAll "([A-Z])" $key "-$1" | lower) (include "gigaslice.text" $value) | quote }}
{{- end }}
{{- if ne .Values.kubeletDir "/var/lib/kubelet" }}
- --kubelet-dir={{ .Values.kubeletDir }}/device-plugins
- --pod-resources={{ .Values.kubeletDir }}/pod-resources/kubelet.sock
{{- end }}
{{- if ne .Values.stateDir "/var/lib/gigaslice" }}
- --state-dir={{ .Values.stateDir }}
{{- end }}
{{- if .Values.metricsToken }}
- --metrics-token-file=/etc/gigaslice/metrics/token
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}
