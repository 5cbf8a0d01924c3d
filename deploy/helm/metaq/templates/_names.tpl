{{/* The prefix of every name: the release, or the release and the chart. */}}
{{- define "metaq.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 28 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 28 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which services and sets select pods. Call with a dict of `root` and `component`. */}}
{{- define "metaq.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "metaq.labels" -}}
{{ include "metaq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "metaq.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{/* All name servers, each by the name of its pod. */}}
{{- define "metaq.nameservers" -}}
{{- $name := include "metaq.name" . -}}
{{- $addresses := list -}}
{{- range $number := until (int .Values.nameserver.replicas) -}}
{{- $addresses = append $addresses (printf "%s-nameserver-%d.%s-nameserver-pods:9876" $name $number $name) -}}
{{- end -}}
{{- join ";" $addresses -}}
{{- end -}}

{{- define "metaq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 9876
runAsGroup: 9876
fsGroup: 9876
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "metaq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
