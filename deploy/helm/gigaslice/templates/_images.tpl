{{- /* The full name of an image: of a list, the root, its values (repository, tag, digest), and the tag where neither tag nor
       digest is set. global.imageRegistry takes the place of the repository's host, which is its first part where that has a dot or a
       colon or is localhost, as container runtimes read it. A digest stands alone unless a tag was written too: a tag that nobody
       chose beside it could say another version than the digest. */ -}}
{{- define "gigaslice.imageName" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- with ($root.Values.global).imageRegistry -}}
{{- $parts := splitList "/" $repository -}}
{{- $host := first $parts -}}
{{- if and (gt (len $parts) 1) (or (contains "." $host) (contains ":" $host) (eq $host "localhost")) -}}
{{- $repository = rest $parts | join "/" -}}
{{- end -}}
{{- $repository = printf "%s/%s" . $repository -}}
{{- end -}}
{{- $digest := $image.digest | default "" -}}
{{- $tag := $image.tag | default (ternary "" (index . 2) (ne $digest "")) -}}
{{- $repository -}}
{{- with $tag }}:{{ . }}{{ end -}}
{{- with $digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- /* Of every container of ours. */ -}}
{{- define "gigaslice.image" -}}
{{- include "gigaslice.imageName" (list . .Values.image .Chart.AppVersion) -}}
{{- end -}}

{{- /* Of the second scheduler. Its flags depend on its version, which a digest does not say. */ -}}
{{- define "gigaslice.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler -}}
{{- if and $image.digest (not $image.tag) -}}
{{- fail "scheduler.kubeScheduler.digest: write scheduler.kubeScheduler.tag too, the version of the image with that digest" -}}
{{- end -}}
{{- include "gigaslice.imageName" (list . $image (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version)) -}}
{{- end -}}
