package failure

import "strings"

// tlsAdvices are the next step for what TLS says of a connection that was not made, the first that is in the message.
var tlsAdvices = []struct{ says, advice string }{
	{"tls: certificate required", "--tls-cert and --tls-key: this server requires a client certificate"},
	{"tls: expired certificate", "a certificate with --tls-cert that is valid at this time"},
	{"tls: unknown certificate authority", "a certificate with --tls-cert of an authority that the server trusts"},
	{"tls: bad certificate", "a certificate with --tls-cert of an authority that the server trusts; its log has the reason"},
	{"certificate signed by unknown authority", "--tls-ca with the authority of the server's certificate"},
	{"certificate is valid for", "the name that the certificate has as target, or with --tls-server-name"},
	{"any names, but wanted to match", "the name that the certificate has with --tls-server-name or --tls-server-san"},
	{"doesn't contain any IP SANs", "the name that the certificate has as target, or with --tls-server-name"},
	{"certificate has expired or is not yet valid", "another certificate for the server, or this machine's clock set right"},
	{"first record does not look like a TLS handshake", "without --tls-ca, if that server is meant to have no TLS"},
	{"protocol version not supported", "a server that supports TLS 1.3"},
	{"error reading server preface", "--tls-ca, if that server has TLS"},
}

// tlsAdvice is the next step after a message of a connection that was not made, "" if it is not about TLS.
func tlsAdvice(message string) string {
	for _, a := range tlsAdvices {
		if strings.Contains(message, a.says) {
			return a.advice
		}
	}
	return ""
}
