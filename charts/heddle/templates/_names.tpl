{{/* Labels of every object of the chart; heddle.dev/part is what "heddle
install" prunes and "heddle uninstall" finds by. */}}
{{- define "heddle.labels" -}}
app.kubernetes.io/name: heddle-{{ .part }}
app.kubernetes.io/part-of: heddle
app.kubernetes.io/version: {{ regexReplaceAll "[^A-Za-z0-9_.-]+" (include "heddle.tag" .root) "_" | trunc 63 | trimAll "_.-" | quote }}
heddle.dev/part: {{ .part }}
{{- end -}}

{{- define "heddle.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* MeshConfig's goes before the flag everywhere else; the node agent cannot
read it before it trusts the control plane. */}}
{{- define "heddle.trustDomain" -}}
{{ .Values.meshConfig.trustDomain | default .Values.trustDomain }}
{{- end -}}

{{- define "heddle.image" -}}
{{ .root.Values.image.repository }}/heddle-{{ .part }}:{{ include "heddle.tag" .root }}
{{- end -}}

{{- define "heddle.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A program that needs nothing of its machine. */}}
{{- define "heddle.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Replicas on different nodes, if there are that many. */}}
{{- define "heddle.spread" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {app.kubernetes.io/name: heddle-{{ . }}}
{{- end -}}
