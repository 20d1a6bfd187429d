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

// unknown stands for methods that nobody registered: who calls them may name any.
const unknown = "unknown"

// seconds resolve calls: 1 ms to 1 h.
var seconds = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}

// Calls counts the calls of a gRPC server under the names that go-grpc-middleware gives them, and refusals by their reason. What a
// caller sends becomes no label: methods are those registered, codes and reasons those that are defined. It implements
// rpc.CallObserver and prometheus.Collector.
type Calls struct {
	started, handled, refused *prometheus.CounterVec
	handling                  *prometheus.HistogramVec
	server                    *rpc.Server
	keys                      prometheus.Collector // nil: the server has none
}

// Measures of every server.
var (
	methodLabels = []string{"grpc_type", "grpc_service", "grpc_method"}

	aboutStarted = About{"grpc_server_started_total", Counter, methodLabels, "Calls begun; those of methods that do not exist are of " +
		"service and method unknown."}
	aboutHandled  = About{"grpc_server_handled_total", Counter, append(methodLabels[:3:3], "grpc_code"), "Calls ended, by code."}
	aboutHandling = About{"grpc_server_handling_seconds", Histogram, methodLabels, "Time of a call from its arrival to its end, a " +
		"stream's last message included."}
	aboutRefused = About{"millrace_refused_calls_total", Counter, []string{"reason", "origin"}, "Calls that ended with a status that has " +
		"a reason, by it. origin: own, or worker where a scheduler passes a worker's status on."}

	ofServer = []Reading[*rpc.Server]{
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
		refusedConnections(rpc.CauseUnsettled), refusedConnections(rpc.CauseHeaders),
	}
)

// refusedConnections is the series of a cause.
func refusedConnections(cause string) Reading[*rpc.Server] {
	return Reading[*rpc.Server]{
		Name: "millrace_refused_connections_total", Kind: Counter, Label: "cause", Value: cause,
		Help: "Connections that the server ended. handshake: no TLS, no certificate, or one that is not taken; address: its address has " +
			"as many as it may; unsettled: many do not become HTTP/2, and it was the oldest; headers: those of a call came too slowly.",
		Read: func(s *rpc.Server) float64 { return float64(s.RefusedConnections(cause)) },
	}
}

// NewCalls makes counters at 0. Give them to the server's configuration, and then the server to Of.
func NewCalls() *Calls {
	counters := func(a About) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: a.Name, Help: a.Help}, a.Labels)
	}
	return &Calls{
		started: counters(aboutStarted), handled: counters(aboutHandled), refused: counters(aboutRefused),
		handling: prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: aboutHandling.Name, Help: aboutHandling.Help, Buckets: seconds}, methodLabels),
	}
}

// Of gives the server whose calls they are, before it serves.
func (c *Calls) Of(s *rpc.Server) { c.server = s }

// With gives the measures of those who may call the server, before anything is served.
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

// labelsOf are the labels of a method; it has no name where nobody registered it.
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
		service, method = unknown, unknown
	}
	return append(make([]string, 0, 4), kind, service, method)
}

// Code is a code's name; those that gRPC does not define are Unknown.
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
	for _, r := range ofServer {
		out <- r.About().Desc()
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
	for _, r := range ofServer {
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

// AboutCalls are the measures of Calls, in the order of names.
func AboutCalls() []About {
	all := []About{aboutStarted, aboutHandled, aboutHandling, aboutRefused}
	for _, r := range ofServer {
		all = append(all, r.About())
	}
	slices.SortFunc(all, func(a, b About) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b About) bool { return a.Name == b.Name })
}

var _ rpc.CallObserver = (*Calls)(nil)
