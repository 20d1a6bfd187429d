package rpc

// Keys of metadata, headers and trailers, that programs of ours write and read.
const (
	// RequestIDKey is the metadata key of the request id. A server takes the caller's if it is 1 to 128 printable ASCII
	// characters, else makes one.
	RequestIDKey = "x-request-id"
	// RoutingKey is the metadata key by which a caller asks a scheduler to send equal values to one worker where that can be.
	RoutingKey = "millrace-routing-key"
	// UsageTrailer holds the Usage so far, as its message's bytes, of a generation that failed.
	UsageTrailer = "millrace-usage-bin"
	// PushbackTrailer tells standard clients that retry how many milliseconds to wait.
	PushbackTrailer = "grpc-retry-pushback-ms"
	// LoadReportPrefix begins the trailers with load reports of a server, which are for who balances load: ORCA's.
	LoadReportPrefix = "endpoint-load-metrics"
)
