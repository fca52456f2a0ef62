{{- define "peeklock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "peeklock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "peeklock.labels" -}}
{{ include "peeklock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The headless Service by which nodes reach each other. */}}
{{- define "peeklock.nodes" -}}
{{- include "peeklock.fullname" . }}-nodes
{{- end }}

{{- define "peeklock.keysSecret" -}}
{{- with .Values.auth.keys -}}
{{- if .existingSecret -}}
{{- .existingSecret -}}
{{- else if .rules -}}
{{- include "peeklock.fullname" $ }}-keys
{{- end -}}
{{- end -}}
{{- end }}

{{/* The settings file: what the chart knows, then what the user adds. JSON values are TOML values too. */}}
{{- define "peeklock.settings" -}}
{{- $name := include "peeklock.fullname" . -}}
{{- $settings := dict "data" "/data/peeklock" "host" "0.0.0.0" "amqp-port" 5672 "http-port" 5300 "auth" .Values.auth.modes -}}
{{- if .Values.config -}}
{{- $_ := set $settings "config" "/etc/peeklock/Config.json" -}}
{{- end -}}
{{- if include "peeklock.keysSecret" . -}}
{{- $_ := set $settings "keys" "/run/secrets/peeklock/keys/keys.json" -}}
{{- end -}}
{{- if has "jwt" .Values.auth.modes -}}
{{- $_ := set $settings "jwt" "/etc/peeklock/jwt.toml" -}}
{{- end -}}
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $settings "tls-cert" "/run/secrets/peeklock/tls/tls.crt" -}}
{{- $_ := set $settings "tls-key" "/run/secrets/peeklock/tls/tls.key" -}}
{{- else -}}
{{- $names := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.%s" $name .Release.Namespace .Values.tls.clusterDomain) -}}
{{- $_ := set $settings "tls-name" (concat $names .Values.tls.names) -}}
{{- end -}}
{{- if .Values.cluster.enabled -}}
{{- $_ := set $settings "cluster-key" "/run/secrets/peeklock/cluster/cluster.key" -}}
{{- end -}}
{{- range $key, $value := mergeOverwrite $settings .Values.settings }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
