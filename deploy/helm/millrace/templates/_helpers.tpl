{{/* The name that all others begin with. */}}
{{- define "millrace.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels by which the pods of one part are chosen: (list . "worker"). They never change in a release. */}}
{{- define "millrace.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ $.Chart.Name }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* All labels of one part. */}}
{{- define "millrace.labels" -}}
{{- $ := index . 0 -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ $.Chart.Name }}-{{ $.Chart.Version }}
{{- end -}}

{{/* Whether workers compute on GPUs: "true" or nothing. */}}
{{- define "millrace.gpu" -}}
{{- if hasPrefix "cuda:" .Values.worker.device }}true{{ end -}}
{{- end -}}

{{/* The image of one part. */}}
{{- define "millrace.image" -}}
{{- $ := index . 0 -}}{{- $part := index . 1 -}}
{{- $own := (index $.Values $part).image -}}
{{- $tag := default $.Chart.AppVersion $.Values.image.tag -}}
{{- if and (eq $part "worker") (include "millrace.gpu" $) }}{{ $tag = printf "%s-cuda" $tag }}{{ end -}}
{{- default (printf "%s:%s" $.Values.image.repository $tag) $own -}}
{{- end -}}

{{/* What all parts say of their pods. */}}
{{- define "millrace.pod" -}}
{{- $ := index . 0 -}}{{- $part := index $.Values (index . 1) -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  # A volume of models is not walked at every start.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" }}
{{- with index $part $field }}
{{ $field }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
topologySpreadConstraints:
  {{- with $part.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "millrace.selector" . | nindent 8 }}
  {{- end }}
{{- end -}}

{{/* What all parts say of their container's rights. */}}
{{- define "millrace.rights" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/*
Probes of one part. Measures' port tells the kubelet whether a restart would help (/healthz), in plaintext also beside TLS, which it does
not speak over gRPC. Readiness is asked of the gRPC health service where it can be.
*/}}
{{- define "millrace.probes" -}}
{{- $ := index . 0 -}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  {{- if $.Values.tls.enabled }}
  httpGet: {path: /readyz, port: metrics}
  {{- else }}
  grpc: {port: {{ index . 1 }}}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/* The files of secrets that one part reads, as a list in YAML: its name, its secret, and what of it is there. */}}
{{- define "millrace.secrets" -}}
{{- $ := index . 0 -}}{{- $part := index . 1 -}}
{{- $files := list -}}
{{- if and $.Values.tls.enabled (eq $part "gateway") -}}
{{- $files = append $files (dict "name" "gateway-tls" "secret" $.Values.tls.gateway.secretName "keys" (list "tls.crt" "tls.key" "ca.crt")) -}}
{{- else if $.Values.tls.enabled -}}
{{- $files = append $files (dict "name" "tls" "secret" (index $.Values.tls $part).secretName "keys" (list "tls.crt" "tls.key" "ca.crt")) -}}
{{- end -}}
{{- with index $.Values.auth $part }}{{ if .secretName -}}
{{- $files = append $files (dict "name" "keys" "secret" .secretName "keys" (list .key)) -}}
{{- end }}{{ end -}}
{{- with $.Values.auth.workerToken }}{{ if and .secretName (eq $part "scheduler") -}}
{{- $files = append $files (dict "name" "worker-token" "secret" .secretName "keys" (list .key)) -}}
{{- end }}{{ end -}}
{{- with $.Values.gateway.resumeKey }}{{ if and .secretName (eq $part "gateway") -}}
{{- $files = append $files (dict "name" "resume-key" "secret" .secretName "keys" (list .key)) -}}
{{- end }}{{ end -}}
{{- toYaml $files -}}
{{- end -}}

{{- define "millrace.secretVolumes" -}}
{{- range include "millrace.secrets" . | fromYamlArray }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items:
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- end -}}

{{/* Folders and not single files: those that are mounted alone are not changed with their secret. */}}
{{- define "millrace.secretMounts" -}}
{{- range include "millrace.secrets" . | fromYamlArray }}
- {name: {{ .name }}, mountPath: /etc/millrace/{{ .name }}, readOnly: true}
{{- end }}
{{- end -}}

{{/* The container of a gateway: (list . TARGET SANS), the servers that it calls and the names that their certificates have. */}}
{{- define "millrace.gatewayContainer" -}}
{{- $ := index . 0 -}}{{- $g := $.Values.gateway -}}
- name: gateway
  image: {{ include "millrace.image" (list $ "gateway") }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  command: [millrace-gateway]
  args:
    - --listen=:8080
    - --metrics-listen=:9080
    - --target={{ index . 1 }}
    - --drain-timeout={{ $g.drainSeconds }}s
    - --log-level={{ $.Values.logs.level }}
    {{- if $.Values.logs.json }}
    - --log-json
    {{- end }}
    {{- with $g.origins }}
    - --cors-origins={{ join "," . }}
    {{- end }}
    {{- with $g.resumeKey }}{{ if .secretName }}
    - --resume-key-file=/etc/millrace/resume-key/{{ .key }}
    {{- end }}{{ end }}
    {{- if $.Values.tls.enabled }}
    - --tls-cert=/etc/millrace/gateway-tls/tls.crt
    - --tls-key=/etc/millrace/gateway-tls/tls.key
    - --tls-ca=/etc/millrace/gateway-tls/ca.crt
    - --tls-server-san={{ join "," (index . 2) }}
    {{- if $.Values.tls.gateway.clientCertificates }}
    - --tls-client-ca=/etc/millrace/gateway-tls/ca.crt
    {{- end }}
    {{- else }}
    - --insecure
    {{- end }}
    {{- range $g.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  {{- with $g.extraEnv }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - {name: http, containerPort: 8080}
    - {name: http-metrics, containerPort: 9080}
  livenessProbe:
    httpGet: {path: /healthz, port: http-metrics}
    periodSeconds: 10
    timeoutSeconds: 5
  readinessProbe:
    httpGet: {path: /readyz, port: http-metrics}
    periodSeconds: 5
    timeoutSeconds: 5
  {{- with $g.preStopSeconds }}
  lifecycle:
    preStop: {sleep: {seconds: {{ . }}}}
  {{- end }}
  {{- with $g.resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- include "millrace.rights" $ | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    {{- include "millrace.secretMounts" (list $ "gateway") | nindent 4 }}
{{- end -}}

{{/* The series of one service of this release, as labels of PromQL. */}}
{{- define "millrace.series" -}}
{{- $ := index . 0 -}}
namespace="{{ $.Release.Namespace }}",service="{{ include "millrace.fullname" $ }}-{{ index . 1 }}"
{{- end -}}

{{/* When workers are more and fewer: soon, and late and one at a time, since a load is dear. */}}
{{- define "millrace.scaling" -}}
scaleUp:
  stabilizationWindowSeconds: 30
  policies: [{type: Percent, value: 100, periodSeconds: 60}]
scaleDown:
  stabilizationWindowSeconds: {{ .Values.worker.autoscaling.scaleDownSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: 60}]
{{- end -}}
