package metrics

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/services/internal/monitor"
)

// families are the metrics of one scrape, by name.
type families map[string]*dto.MetricFamily

// alias is one of our metrics under vLLM's name for it. Its series are computed at each scrape.
type alias struct {
	monitor.Metric
	series func(families) []*dto.Metric
}

// Labels of vLLM. It numbers its engines; a model here has one.
const (
	labelModelName = "model_name"
	labelEngine    = "engine"
)

// vllm has the metrics that dashboards, autoscalers and gateways for vLLM read. vLLM counts
// requests where we count sequences.
var vllm = []alias{
	same("vllm:num_requests_running", monitor.Gauge, "millrace_running_sequences"),
	same("vllm:num_requests_waiting", monitor.Gauge, "millrace_waiting_sequences"),
	{about("vllm:kv_cache_usage_perc", monitor.Gauge, "The share of `millrace_kv_blocks` that is held, or of `millrace_window_blocks` if that is larger, 0 to 1."), usage},
	same("vllm:prompt_tokens_total", monitor.Counter, "millrace_admitted_prompt_tokens_total"),
	same("vllm:generation_tokens_total", monitor.Counter, "millrace_generated_tokens_total"),
	same("vllm:prefix_cache_queries_total", monitor.Counter, "millrace_admitted_prompt_tokens_total"),
	same("vllm:prefix_cache_hits_total", monitor.Counter, "millrace_prefix_tokens_total"),
	{about("vllm:num_preemptions_total", monitor.Counter, "The sum of `millrace_preemptions_total`."), preemptions},
	{about("vllm:request_success_total", monitor.Counter, "As `millrace_finished_sequences_total`.", "finished_reason"), finished},
	same("vllm:time_to_first_token_seconds", monitor.Histogram, "millrace_first_token_seconds"),
	same("vllm:inter_token_latency_seconds", monitor.Histogram, "millrace_inter_token_seconds"),
	same("vllm:time_per_output_token_seconds", monitor.Histogram, "millrace_inter_token_seconds"),
	same("vllm:e2e_request_latency_seconds", monitor.Histogram, "millrace_request_seconds"),
	same("vllm:request_queue_time_seconds", monitor.Histogram, "millrace_queue_wait_seconds"),
	same("vllm:iteration_tokens_total", monitor.Histogram, "millrace_step_tokens"),
	{about("vllm:cache_config_info", monitor.Gauge, "Always 1: tokens that a KV block holds, and blocks of the cache.",
		"block_size", "num_gpu_blocks"), cacheConfig},
}

func about(name string, kind monitor.Kind, help string, own ...string) monitor.Metric {
	return monitor.Metric{Name: name, Kind: kind, Labels: append([]string{labelModelName, labelEngine}, own...), Help: help}
}

// same returns one of our metrics under another name.
func same(name string, kind monitor.Kind, ours string) alias {
	return alias{about(name, kind, "As `"+ours+"`."), func(f families) (all []*dto.Metric) {
		for _, m := range f[ours].GetMetric() {
			all = append(all, labelled(m, nameOf(m)))
		}
		return all
	}}
}

// labelled returns one of our series with vLLM's labels.
func labelled(m *dto.Metric, model string, own ...*dto.LabelPair) *dto.Metric {
	out := &dto.Metric{Gauge: m.GetGauge(), Counter: m.GetCounter(), Histogram: m.GetHistogram()}
	out.Label = append([]*dto.LabelPair{label(labelModelName, model), label(labelEngine, "0")}, own...)
	slices.SortFunc(out.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out
}

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// nameOf returns the model of a series.
func nameOf(m *dto.Metric) string { return valueOf(m, labelModel) }

// valueOf returns the value of a label, and "" for none.
func valueOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// blocks returns the KV blocks of each model in a metric of them, all and held, with the models in
// the order of names.
func blocks(f families, metric string) (models []string, all, held map[string]float64) {
	all, held = map[string]float64{}, map[string]float64{}
	for _, m := range f[metric].GetMetric() {
		name := nameOf(m)
		if _, known := all[name]; !known {
			models = append(models, name)
		}
		all[name] += m.GetGauge().GetValue()
		if valueOf(m, "state") == "held" {
			held[name] = m.GetGauge().GetValue()
		}
	}
	return models, all, held
}

func usage(f families) (series []*dto.Metric) {
	models, all, held := blocks(f, "millrace_kv_blocks")
	_, windows, heldWindows := blocks(f, "millrace_window_blocks")
	for _, name := range models {
		// A model has no room if one of its groups has none. A group may have no blocks.
		share := max(held[name]/max(all[name], 1), heldWindows[name]/max(windows[name], 1))
		series = append(series, labelled(&dto.Metric{Gauge: &dto.Gauge{Value: &share}}, name))
	}
	return series
}

func cacheConfig(f families) (series []*dto.Metric) {
	size := map[string]float64{}
	for _, m := range f["millrace_kv_block_tokens"].GetMetric() {
		size[nameOf(m)] = m.GetGauge().GetValue()
	}
	models, all, _ := blocks(f, "millrace_kv_blocks")
	for _, name := range models {
		series = append(series, labelled(&dto.Metric{Gauge: &dto.Gauge{Value: proto.Float64(1)}}, name,
			label("block_size", strconv.Itoa(int(size[name]))), label("num_gpu_blocks", strconv.Itoa(int(all[name])))))
	}
	return series
}

func preemptions(f families) (series []*dto.Metric) {
	sum := map[string]*float64{}
	for _, m := range f["millrace_preemptions_total"].GetMetric() {
		name := nameOf(m)
		if sum[name] == nil {
			sum[name] = new(float64)
			series = append(series, labelled(&dto.Metric{Counter: &dto.Counter{Value: sum[name]}}, name))
		}
		*sum[name] += m.GetCounter().GetValue()
	}
	return series
}

func finished(f families) (series []*dto.Metric) {
	for _, m := range f["millrace_finished_sequences_total"].GetMetric() {
		series = append(series, labelled(m, nameOf(m), label("finished_reason", valueOf(m, labelReason))))
	}
	return series
}

// aliased gathers metrics, followed by their aliases.
type aliased struct {
	prometheus.Gatherer
	aliases []alias
}

// types maps our kinds to those of Prometheus' messages.
var types = map[monitor.Kind]dto.MetricType{
	monitor.Counter: dto.MetricType_COUNTER, monitor.Gauge: dto.MetricType_GAUGE, monitor.Histogram: dto.MetricType_HISTOGRAM,
}

// Gather implements prometheus.Gatherer.
func (a aliased) Gather() ([]*dto.MetricFamily, error) {
	all, err := a.Gatherer.Gather()
	named := families{}
	for _, f := range all {
		named[f.GetName()] = f
	}
	for i := range a.aliases {
		alias := &a.aliases[i]
		if series := alias.series(named); len(series) > 0 {
			all = append(all, &dto.MetricFamily{
				Name: &alias.Name, Help: &alias.Help, Type: types[alias.Kind].Enum(), Metric: series,
			})
		}
	}
	return all, err
}

// VLLM returns the metrics that Source.VLLM adds, in the order of names.
func VLLM() (all []monitor.Metric) {
	for i := range vllm {
		all = append(all, vllm[i].Metric)
	}
	slices.SortFunc(all, func(a, b monitor.Metric) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
