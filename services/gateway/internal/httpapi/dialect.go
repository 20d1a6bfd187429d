package httpapi

// Dialect is an HTTP API that the gateway speaks.
type Dialect interface {
	// Routes returns the paths that the dialect serves.
	Routes() []Route
	// ErrorBody returns the JSON body of a response that is an error.
	ErrorBody(f *Failure) []byte
	// ErrorEvent returns what ends a stream that fails after it has begun, as it is written.
	ErrorEvent(f *Failure) []byte
}

// Route is one path of a dialect.
type Route struct {
	// Pattern is a pattern of http.ServeMux with a method, for example "POST /v1/completions".
	Pattern string
	// Handle answers a request. It writes nothing after it has decided to return an error.
	Handle func(x *Exchange) error
}
