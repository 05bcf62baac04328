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
{{- range $key, $instead := dict "stateDir" "stateDir" "ledgerDir" "nothing: it is /run/gigaslice" "kubeletDir" "kubeletDir" "podResources" "kubeletDir" "nodeName" "nothing: every node has a name of its own" "driverLimits" "driverLimits.mode" "driverLimitsMargin" "driverLimits.margin" "driverLimitsExempt" "driverLimits.exempt" "driverLimitsSocket" "nothing: it is in /run/gigaslice/driver-limits" "api" "node.api" "kubeletRoot" "kubeletDir" "cdiDir" "nothing: it is /var/run/cdi" -}}
{{- if hasKey $.Values.settings $key -}}
{{- fail (printf "settings.%s: the chart mounts directories and names nodes itself; write %s" $key $instead) -}}
{{- end -}}
{{- end -}}
- node
{{- range $key, $value := .Values.settings }}
- {{ printf "--%s=%s" (regexReplaceAll "([A-Z])" $key "-$1" | lower) (include "gigaslice.text" $value) | quote }}
{{- end }}
{{- /* A class without a share is counted in whole GPUs, so nodes must offer them. */}}
{{- if and .Values.cluster.enabled (not (hasKey .Values.settings "wholeGpus")) }}
- --whole-gpus=gigaslice.io/gpu
{{- end }}
{{- if and (include "gigaslice.annotationRights" .) (not (hasKey .Values.settings "annotationRights")) }}
- --annotation-rights=checked
{{- end }}
{{- if eq .Values.node.api "dra" }}
- --api=dra
{{- end }}
{{- if ne .Values.kubeletDir "/var/lib/kubelet" }}
{{- if include "gigaslice.claims" . }}
- --kubelet-root={{ .Values.kubeletDir }}
{{- end }}
- --kubelet-dir={{ .Values.kubeletDir }}/device-plugins
- --pod-resources={{ .Values.kubeletDir }}/pod-resources/kubelet.sock
{{- end }}
{{- if ne .Values.stateDir "/var/lib/gigaslice" }}
- --state-dir={{ .Values.stateDir }}
{{- end }}
{{- if .Values.metricsToken }}
- --metrics-token-file={{ include "gigaslice.tokenFile" . }}
{{- end }}
{{- with .Values.driverLimits }}
{{- $mode := include "gigaslice.switch" .mode }}
{{- if and (eq $mode "required") (not .enabled) }}
{{- fail "driverLimits.mode required needs the container that sets them: write driverLimits.enabled: true" }}
{{- end }}
{{- if ne $mode "auto" }}
- --driver-limits={{ $mode }}
{{- end }}
{{- with .margin }}
- {{ printf "--driver-limits-margin=%s" (include "gigaslice.text" .) | quote }}
{{- end }}
{{- with .exempt }}
- --driver-limits-exempt={{ join "," . }}
{{- end }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}


{{- /* --- the cluster half: classes, scheduler, admission ------------------------------------------------------------ */ -}}

{{- /* "yes" when the API server has the version given as the second of a list, or a later one. */ -}}
{{- define "gigaslice.since" -}}
{{- $root := index . 0 -}}
{{- if semverCompare (printf ">=%s-0" (index . 1)) $root.Capabilities.KubeVersion.Version -}}yes{{- end -}}
{{- end -}}

{{- /* "yes" when nodes serve claims: all new ones, or those that are left of them. The agent reads claims from the API server. */ -}}
{{- define "gigaslice.claims" -}}
{{- if or (eq .Values.node.api "dra") .Values.node.keepClaims -}}
{{- if not (include "gigaslice.since" (list . "1.34")) -}}
{{- fail (printf "node.api dra needs Kubernetes 1.36, or 1.34 with the feature gate DRAConsumableCapacity, and this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if not (include "gigaslice.asksApi" .) -}}
{{- fail "node.api dra: the kubelet only names claims, and the agent reads them from the API server; leave settings.kubeApi out" -}}
{{- end -}}
yes
{{- end -}}
{{- end -}}

{{- /* The API by which pods get GPUs in namespaces that do not say it. */ -}}
{{- define "gigaslice.defaultApi" -}}
{{- .Values.controller.settings.api | default .Values.node.api -}}
{{- end -}}

{{- /* The namespaces of either API, as the expression of a selector: of a list, the root and the API. One whose label says
       neither is the webhook's, which refuses it. */ -}}
{{- define "gigaslice.namespacesOf" -}}
{{- $byDefault := include "gigaslice.defaultApi" (index . 0) -}}
{{- if eq $byDefault "dra" -}}
- key: gigaslice.io/api
  operator: {{ ternary "NotIn" "In" (eq (index . 1) "dra") }}
  values: ["device-plugin"]
{{- else if eq (index . 1) "dra" -}}
- key: gigaslice.io/api
  operator: Exists
- key: gigaslice.io/api
  operator: NotIn
  values: ["device-plugin"]
{{- else -}}
- key: gigaslice.io/api
  operator: NotIn
  values: ["dra"]
{{- end -}}
{{- end -}}

{{- /* All requests that can bring parameters of a driver: specs of claims cannot be changed. */ -}}
{{- define "gigaslice.claimed" -}}
- apiGroups: ["resource.k8s.io"]
  apiVersions: ["*"]
  operations: ["CREATE"]
  resources: ["resourceclaims", "resourceclaimtemplates"]
{{- end -}}
{{- define "gigaslice.cel.claimSpec" -}}
(request.resource.resource == "resourceclaimtemplates" ? object.spec.spec : object.spec)
{{- end -}}
{{- define "gigaslice.cel.parameters" -}}
{{ include "gigaslice.cel.claimSpec" . }}.?devices.?config.orValue([]).filter(c, {{ "" -}}
c.?opaque.?driver.orValue("") == "gigaslice.io").map(c, c.opaque.parameters)
{{- end -}}

{{- /* The parameters of claims that need a label, as "gigaslice.bounded" has annotations. */ -}}
{{- define "gigaslice.boundedParameters" -}}
- name: priority
  label: priority
  free: p.priority in ["burstable", "best-effort"]
  said: burstable or best-effort
- name: elastic
  label: elastic
  free: p.elastic == false
  said: "false"
- name: timeSlicing
  label: time-slicing
  free: p.timeSlicing == true
  said: "true"
{{- end -}}

{{- /* What the cluster half and the dataset service rely on: the API server's policies, without which anybody's word counts as
       theirs. The agents alone work on earlier ones. */ -}}
{{- define "gigaslice.floor" -}}
{{- range $value := list "cluster" "dataset" -}}
{{- if and (get $.Values $value).enabled (not (include "gigaslice.since" (list $ "1.30"))) -}}
{{- fail (printf "%s.enabled needs Kubernetes 1.30, and this is %s" $value $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What becomes of a pod whose annotations need a label that its Namespace has not: deny, warn or off. Before policies: off,
       and the roles refuse it themselves. */ -}}
{{- define "gigaslice.rights" -}}
{{- ternary (include "gigaslice.switch" .Values.admission.rights) "off" (eq "yes" (include "gigaslice.since" (list . "1.30"))) -}}
{{- end -}}

{{- /* Whether the roles may take the API server's word for a pod's annotations: where it denies what they would refuse. */ -}}
{{- define "gigaslice.annotationRights" -}}
{{- if eq "deny" (include "gigaslice.rights" .) -}}checked{{- end -}}
{{- end -}}

{{- /* The annotations that need a label, each with what is free as CEL over TEXT and in words. A test compares them with the
       agents' own table (gigaslice/core/model/options.py). */ -}}
{{- define "gigaslice.bounded" -}}
- name: exclusive
  free: TEXT == "false"
  said: '"false"'
- name: cores
  free: (TEXT.matches("^[0-9]{1,9}$") && int(TEXT) <= {{ int .Values.admission.freeCores }})
  said: a whole number up to {{ int .Values.admission.freeCores }}
- name: priority
  free: TEXT in ["burstable", "best-effort"]
  said: '"burstable" or "best-effort"'
- name: elastic
  free: TEXT == "false"
  said: '"false"'
- name: time-slicing
  free: TEXT == "true"
  said: '"true"'
{{- end -}}

{{- /* All requests that can change a pod's annotations; a binding's are added to the pod's. */ -}}
{{- define "gigaslice.annotated" -}}
- apiGroups: [""]
  apiVersions: ["v1"]
  operations: ["CREATE", "UPDATE"]
  resources: ["pods", "pods/status", "pods/resize", "pods/ephemeralcontainers"]
- apiGroups: [""]
  apiVersions: ["v1"]
  operations: ["CREATE"]
  resources: ["pods/binding", "bindings"]
{{- end -}}

{{- /* How pods are completed and checked: policy, webhook or none. */ -}}
{{- define "gigaslice.admission" -}}
{{- if not .Values.cluster.enabled -}}none
{{- else if eq .Values.admission.mode "auto" -}}
{{- ternary "policy" "webhook" (eq "yes" (include "gigaslice.since" (list . "1.36"))) -}}
{{- else -}}
{{- if and (eq .Values.admission.mode "policy") (not (include "gigaslice.since" (list . "1.34"))) -}}
{{- fail "admission.mode policy needs Kubernetes 1.34 with the feature gate MutatingAdmissionPolicy, or 1.36; write webhook" -}}
{{- end -}}
{{- .Values.admission.mode -}}
{{- end -}}
{{- end -}}

{{- /* Which scheduler places pods that ask for ours. */ -}}
{{- define "gigaslice.schedulerName" -}}
{{- if .Values.scheduler.name -}}
{{- .Values.scheduler.name -}}
{{- else -}}
{{- ternary "default-scheduler" "gigaslice-scheduler" (eq .Values.scheduler.mode "extender") -}}
{{- end -}}
{{- end -}}

{{- /* Where the scheduler's metrics are served apart from what kube-scheduler asks: on a machine's network nowhere by itself. */ -}}
{{- define "gigaslice.schedulerMetrics" -}}
{{- if hasKey .Values.scheduler.settings "metricsAddress" -}}
{{- include "gigaslice.switch" .Values.scheduler.settings.metricsAddress -}}
{{- else -}}
{{- ternary ":9447" "off" (eq .Values.scheduler.mode "second") -}}
{{- end -}}
{{- end -}}

{{- /* Where the dataset service's metrics are served. */ -}}
{{- define "gigaslice.datasetMetrics" -}}
{{- if hasKey .Values.dataset.settings "metricsAddress" -}}
{{- include "gigaslice.switch" .Values.dataset.settings.metricsAddress -}}
{{- else -}}
:9446
{{- end -}}
{{- end -}}

{{- /* The controller's addresses that others than its own pod reach, as a name and a number of each port. The page is by
       itself on the pod's loopback address, for kubectl port-forward. */ -}}
{{- define "gigaslice.controllerPorts" -}}
{{- $addresses := dict "metrics" ":9446" "page" "off" -}}
{{- if ne (include "gigaslice.admission" .) "none" -}}{{- $_ := set $addresses "webhook" ":9443" -}}{{- end -}}
{{- range $name := keys $addresses -}}
{{- $setting := printf "%sAddress" $name -}}
{{- if hasKey $.Values.controller.settings $setting -}}
{{- $_ := set $addresses $name (include "gigaslice.switch" (get $.Values.controller.settings $setting)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $address := $addresses -}}
{{- if ne "yes" (include "gigaslice.unreachable" $address) }}
{{ $name }}: {{ regexFind "[0-9]+$" $address }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The token that metrics are asked for with: its file, its mount in a container, and its volume in a pod, which is of a list,
       the root and the file's mode: roles that are not root are neither its owner nor of its group. */ -}}
{{- define "gigaslice.tokenFile" -}}
{{- if .Values.metricsToken -}}/etc/gigaslice/metrics/token{{- end -}}
{{- end -}}
{{- define "gigaslice.tokenMount" -}}
- name: metrics-token
  mountPath: /etc/gigaslice/metrics
  readOnly: true
{{- end -}}
{{- define "gigaslice.tokenVolume" -}}
- name: metrics-token
  secret:
    secretName: {{ (index . 0).Values.metricsToken }}
    defaultMode: {{ index . 1 }}
{{- end -}}

{{- /* "yes" for an address of HOST:PORT that only the pod itself reaches, or none. */ -}}
{{- define "gigaslice.unreachable" -}}
{{- if regexMatch "^(off$|127\\.|localhost:|\\[::1\\])" . -}}yes{{- end -}}
{{- end -}}

{{- /* The resources by which nodes count slices and whole GPUs, from the agents' settings. */ -}}
{{- define "gigaslice.memoryResource" -}}
{{- .Values.settings.resource | default "gigaslice.io/vgpu-memory" -}}
{{- end -}}
{{- define "gigaslice.gpuResource" -}}
{{- $name := include "gigaslice.switch" (.Values.settings.wholeGpus | default "off") -}}
{{- ternary "gigaslice.io/gpu" $name (eq $name "off") -}}
{{- end -}}

{{- /* The resources of ours that nodes offer, as JSON. */ -}}
{{- define "gigaslice.resources" -}}
{{- $names := list (include "gigaslice.memoryResource" .) (include "gigaslice.gpuResource" .) -}}
{{- uniq (concat $names .Values.scheduler.managedResources) | toJson -}}
{{- end -}}

{{- /* Settings of the agents that the cluster's roles must share, by the names of flags. */ -}}
{{- define "gigaslice.units" -}}
{{- dict "resource" (include "gigaslice.memoryResource" .) "wholeGpus" (include "gigaslice.gpuResource" .) "slice" (.Values.settings.slice | default "1GiB") | toJson -}}
{{- end -}}

{{- /* Of an account of ours: the user that the API server sees. */ -}}
{{- define "gigaslice.user" -}}
{{- printf "system:serviceaccount:%s:%s" (index . 0).Release.Namespace (index . 1) -}}
{{- end -}}

{{- /* A role's settings as flags: of a list of settings, of which an earlier one has its way. Not Helm's merge, which takes
       false, the "off" of a file of values, for a setting that is missing. */ -}}
{{- define "gigaslice.flags" -}}
{{- $chosen := dict -}}
{{- range $settings := . -}}
{{- range $key, $value := $settings -}}
{{- if not (hasKey $chosen $key) -}}{{- $_ := set $chosen $key $value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := $chosen }}
- {{ printf "--%s=%s" (regexReplaceAll "([A-Z])" $key "-$1" | lower) (include "gigaslice.text" $value) | quote }}
{{- end }}
{{- end -}}

{{- /* Of a container that needs nothing of the node. */ -}}
{{- define "gigaslice.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{- define "gigaslice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* The annotations of what a test may do: made before its pod, and removed whatever becomes of that. */ -}}
{{- define "gigaslice.testRights" -}}
helm.sh/hook: test
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end -}}

{{- /* Where the pods of a role may run: of a list, the root, the role's values and its name. */ -}}
{{- define "gigaslice.where" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $role.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $role.affinity }}
affinity:
  {{- toYaml $role.affinity | nindent 2 }}
{{- else if eq (index . 2) "extender" }}
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "gigaslice.labels" $root | nindent 14 }}
              app.kubernetes.io/component: {{ index . 2 }}
{{- end }}
{{- end -}}

{{- /* The name k is of a resource by which GPUs are counted; for CEL. */ -}}
{{- define "gigaslice.cel.counts" -}}
k.startsWith("{{ include "gigaslice.memoryResource" . }}.") || k in {{ include "gigaslice.resources" . }}
{{- end -}}

{{- /* A container asks for ours; for CEL. */ -}}
{{- define "gigaslice.cel.containers" -}}
(object.spec.containers + object.spec.?initContainers.orValue([]))
{{- end -}}
{{- define "gigaslice.cel.asks" -}}
{{ include "gigaslice.cel.containers" . }}.exists(c, c.?resources.?limits.orValue({}).exists(k, {{ "" -}}
k.startsWith("gpuclass.gigaslice.io/") || {{ include "gigaslice.cel.counts" . }}))
{{- end -}}
{{- define "gigaslice.cel.class" -}}
{{ include "gigaslice.cel.containers" . }}.exists(c, c.?resources.?limits.orValue({}).exists(k, k.startsWith("gpuclass.gigaslice.io/")))
{{- end -}}


{{- /* GPU memory of one slice in bytes, from the agents' setting. */ -}}
{{- define "gigaslice.sliceBytes" -}}
{{- $text := include "gigaslice.text" (.Values.settings.slice | default "1GiB") -}}
{{- $powers := dict "" 0 "b" 0 "k" 1 "ki" 1 "kib" 1 "m" 2 "mi" 2 "mib" 2 "g" 3 "gi" 3 "gib" 3 "t" 4 "ti" 4 "tib" 4 -}}
{{- $unit := lower (regexFind "[A-Za-z]*$" $text) -}}
{{- if not (and (regexMatch "^[0-9]+[A-Za-z]*$" $text) (hasKey $powers $unit)) -}}
{{- fail (printf "settings.slice: %s: with cluster.enabled write a whole number with KiB, MiB, GiB or TiB" $text) -}}
{{- end -}}
{{- $bytes := regexFind "^[0-9]+" $text | int64 -}}
{{- $power := get $powers $unit | int -}}
{{- if and (not $unit) (le $bytes 9999) -}}{{- $power = 3 -}}{{- end -}}
{{- if and (not $unit) (gt $bytes 9999) (lt $bytes 1048576) -}}
{{- fail (printf "settings.slice: %s: a number alone is GiB up to 9999 and bytes from 1048576 on; write its unit" $text) -}}
{{- end -}}
{{- range until $power -}}{{- $bytes = mul $bytes 1024 -}}{{- end -}}
{{- printf "%d" $bytes -}}
{{- end -}}
