package monitor

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// unknownMethod is the label of methods that are not registered, which callers choose freely.
const unknownMethod = "unknown"

// seconds are the histogram bounds: 1 ms to 1 h.
var seconds = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}

// Calls counts the calls of a gRPC server under the names of go-grpc-middleware, and refusals by
// reason. Callers cannot create labels: methods must be registered, and codes and reasons defined.
// It implements rpc.CallObserver and prometheus.Collector.
type Calls struct {
	started, handled, refused *prometheus.CounterVec
	handling                  *prometheus.HistogramVec
	server                    *rpc.Server
	keys                      prometheus.Collector // nil: the server has none
}

// Metrics of every server.
var (
	methodLabels = []string{"grpc_type", "grpc_service", "grpc_method"}

	startedMetric = Metric{"grpc_server_started_total", Counter, methodLabels, "Calls begun; those of methods that do not exist are of " +
		"service and method unknown."}
	handledMetric  = Metric{"grpc_server_handled_total", Counter, append(methodLabels[:3:3], "grpc_code"), "Calls ended, by code."}
	handlingMetric = Metric{"grpc_server_handling_seconds", Histogram, methodLabels, "Time of a call from its arrival to its end, a " +
		"stream's last message included."}
	refusedMetric = Metric{"millrace_refused_calls_total", Counter, []string{"reason", "origin"}, "Calls that ended with a status that has " +
		"a reason, by it. origin: own, or worker where a scheduler passes a worker's status on."}

	serverMetrics = []Reading[*rpc.Server]{
		{Name: "millrace_panics_total", Kind: Counter, Help: "Handlers that panicked; each lost its own call.",
			Read: func(s *rpc.Server) float64 { return float64(s.Panics()) }},
		{Name: "millrace_held_request_bytes", Kind: Gauge, Help: "Bytes of requests that are held, those of up to 4 KiB not counted.",
			Read: func(s *rpc.Server) float64 { return float64(s.HeldBytes()) }},
		{Name: "millrace_max_held_request_bytes", Kind: Gauge, Help: "Bytes of requests beyond which more are refused.",
			Read: func(s *rpc.Server) float64 { return float64(s.MaxHeldBytes()) }},
		{Name: "millrace_receiving_request_bytes", Kind: Gauge, Help: "Bytes of requests above 32 KiB that are being received.",
			Read: func(s *rpc.Server) float64 { return float64(s.ReceivingBytes()) }},
		{Name: "millrace_max_receiving_request_bytes", Kind: Gauge, Help: "Bytes of such requests that are received at once.",
			Read: func(s *rpc.Server) float64 { return float64(s.MaxReceivingBytes()) }},
		{Name: "millrace_requests_waiting_to_be_received", Kind: Gauge, Help: "Requests above 32 KiB that wait until others have been received.",
			Read: func(s *rpc.Server) float64 { return float64(s.WaitingToReceive()) }},
		{Name: "millrace_sending_response_bytes", Kind: Gauge, Help: "Bytes of messages above 1 KiB that are being sent: callers have not read them yet.",
			Read: func(s *rpc.Server) float64 { return float64(s.SendingBytes()) }},
		{Name: "millrace_max_sending_response_bytes", Kind: Gauge, Help: "Bytes of such messages that are sent at once; those beyond wait, and beyond half as many are refused.",
			Read: func(s *rpc.Server) float64 { return float64(s.MaxSendingBytes()) }},
		{Name: "millrace_responses_waiting_to_be_sent", Kind: Gauge, Help: "Messages above 1 KiB that wait until others have been sent.",
			Read: func(s *rpc.Server) float64 { return float64(s.WaitingToSend()) }},
		{Name: "millrace_stalled_calls_total", Kind: Counter, Help: "Calls that ended because their caller read nothing of the answer for --send-stall.",
			Read: func(s *rpc.Server) float64 { return float64(s.StalledCalls()) }},
		refusedConnections(rpc.CauseHandshake), refusedConnections(rpc.CauseAddress),
		refusedConnections(rpc.CausePending), refusedConnections(rpc.CauseHeaders),
	}
)

// refusedConnections returns the series of a cause.
func refusedConnections(cause string) Reading[*rpc.Server] {
	return Reading[*rpc.Server]{
		Name: "millrace_refused_connections_total", Kind: Counter, Label: "cause", Value: cause,
		Help: "Connections that the server ended. handshake: no TLS, no certificate, or one that is not taken; address: its address has " +
			"as many as it may; unsettled: many do not become HTTP/2, and it was the oldest; headers: those of a call came too slowly.",
		Read: func(s *rpc.Server) float64 { return float64(s.RefusedConnections(cause)) },
	}
}

// NewCalls returns counters at 0. Put them into the server's configuration, and then pass the
// server to Of.
func NewCalls() *Calls {
	counters := func(a Metric) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: a.Name, Help: a.Help}, a.Labels)
	}
	return &Calls{
		started: counters(startedMetric), handled: counters(handledMetric), refused: counters(refusedMetric),
		handling: prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: handlingMetric.Name, Help: handlingMetric.Help, Buckets: seconds}, methodLabels),
	}
}

// Of sets the server that is observed. Call it before the server serves.
func (c *Calls) Of(s *rpc.Server) { c.server = s }

// With adds the metrics of keys. Call it before the server serves.
func (c *Calls) With(keys prometheus.Collector) { c.keys = keys }

// Began implements rpc.CallObserver.
func (c *Calls) Began(m rpc.Method) { c.started.WithLabelValues(labelsOf(m)...).Inc() }

// Ended implements rpc.CallObserver.
func (c *Calls) Ended(m rpc.Method, err error, took time.Duration) {
	labels := labelsOf(m)
	c.handling.WithLabelValues(labels...).Observe(took.Seconds())
	c.handled.WithLabelValues(append(labels, Code(status.Code(err)))...).Inc()
	info := rpc.Info(err)
	if info == nil {
		return
	}
	why, origin := info.GetReason(), "own"
	if !slices.Contains(reason.All(), why) {
		why = Rest
	}
	if c.server != nil && info.GetDomain() != c.server.Domain() {
		origin = "worker"
	}
	c.refused.WithLabelValues(why, origin).Inc()
}

// labelsOf returns the labels of a method. Methods that are not registered have no name.
func labelsOf(m rpc.Method) []string {
	kind := "unary"
	switch {
	case m.ClientStreams && m.ServerStreams:
		kind = "bidi_stream"
	case m.ClientStreams:
		kind = "client_stream"
	case m.ServerStreams:
		kind = "server_stream"
	}
	service, method, ok := strings.Cut(strings.TrimPrefix(m.Name, "/"), "/")
	if !ok {
		service, method = unknownMethod, unknownMethod
	}
	return append(make([]string, 0, 4), kind, service, method)
}

// Code returns the name of a code, or Unknown for codes that gRPC does not define.
func Code(c codes.Code) string {
	if c > codes.Unauthenticated {
		return codes.Unknown.String()
	}
	return c.String()
}

// Describe implements prometheus.Collector.
func (c *Calls) Describe(out chan<- *prometheus.Desc) {
	for _, v := range c.vecs() {
		v.Describe(out)
	}
	for _, r := range serverMetrics {
		out <- r.Metric().Desc()
	}
}

// Collect implements prometheus.Collector.
func (c *Calls) Collect(out chan<- prometheus.Metric) {
	for _, v := range c.vecs() {
		v.Collect(out)
	}
	if c.server == nil {
		return
	}
	for _, r := range serverMetrics {
		r.Send(out, c.server, nil)
	}
}

func (c *Calls) vecs() []prometheus.Collector {
	all := []prometheus.Collector{c.started, c.handled, c.handling, c.refused}
	if c.keys != nil {
		all = append(all, c.keys)
	}
	return all
}

// CallMetrics describes the metrics of Calls, sorted by name.
func CallMetrics() []Metric {
	all := []Metric{startedMetric, handledMetric, handlingMetric, refusedMetric}
	for _, r := range serverMetrics {
		all = append(all, r.Metric())
	}
	slices.SortFunc(all, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b Metric) bool { return a.Name == b.Name })
}

var _ rpc.CallObserver = (*Calls)(nil)
