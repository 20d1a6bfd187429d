package failure

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// Request describes the request that failed. The zero value describes nothing.
type Request struct {
	// Target is the address that was asked.
	Target string
	// TargetGiven says that the address is not the default one, so that advice repeats it.
	TargetGiven bool
	// Model is the model's name; "" if the request names no model.
	Model string
	// Usage counts the work before the failure; nil if unknown.
	Usage *pb.Usage
	// Help is the command whose help explains the error, "" if the message says all.
	Help string
}

// TargetFlag is the flag that advice must repeat, with a space before it, or "".
func (r Request) TargetFlag() string {
	if !r.TargetGiven {
		return ""
	}
	return " --target " + r.Target
}

// Explain says what happened in lines for a terminal: no control characters but line ends, no line end at the end.
func Explain(err error, r Request) string {
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, render.Line(fmt.Sprintf(format, args...)))
	}
	st, isStatus := statusOf(err)
	if !isStatus || errors.Is(err, ErrUsage) || errors.Is(err, ErrState) {
		text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), ErrUsage.Error()+": "), ErrState.Error()+": ")
		for i, line := range strings.Split(text, "\n") {
			if i > 0 {
				line = "  " + line
			}
			add("%s", line)
		}
		if errors.Is(err, ErrUsage) && r.Help != "" {
			add("  try: %s --help", r.Help)
		}
		return strings.Join(lines, "\n")
	}
	violations := rpc.Violations(err)
	add("%s", headline(st, violations, r.Target))
	for _, v := range violations {
		add("  %s %s", v.Field, v.Description)
	}
	if info := rpc.Info(err); info != nil {
		code := CodeName(st.Code()) + ", "
		if info.GetReason() == CodeName(st.Code()) {
			code = ""
		}
		add("  reason: %s (%sfrom %s)", info.GetReason(), code, info.GetDomain())
		for _, key := range slices.Sorted(maps.Keys(info.GetMetadata())) {
			add("  %s: %s", key, number(key, info.GetMetadata()[key]))
		}
	} else {
		add("  reason: %s", CodeName(st.Code()))
	}
	if u := r.Usage; u != nil {
		add("  so far: %d prompt tokens, %d generated", u.GetPromptTokens(), u.GetCompletionTokens())
	}
	if next := advice(err, st.Code(), r); next != "" {
		add("  try: %s", next)
	}
	return strings.Join(lines, "\n")
}

// statusOf is the status that an error is or wraps, with the server's own message.
func statusOf(err error) (*status.Status, bool) {
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return nil, false
	}
	return carrier.GRPCStatus(), true
}

// headline is the message without the violations that are listed below it.
func headline(st *status.Status, violations []rpc.Violation, target string) string {
	text := st.Message()
	if cause, is := rpc.ConnectionError(text); is {
		return fmt.Sprintf("cannot reach %s: %s", target, cause)
	}
	if text == context.DeadlineExceeded.Error() {
		return "the call's deadline passed before it ended"
	}
	if len(violations) > 0 {
		if cut := strings.Index(text, ": "+violations[0].Field); cut > 0 {
			text = text[:cut]
		}
	}
	if text == "" {
		return "the server answered " + CodeName(st.Code())
	}
	return text
}

// number adds a readable size to a count of bytes.
func number(key, value string) string {
	if n, err := strconv.ParseUint(value, 10, 64); err == nil && strings.HasSuffix(key, "bytes") && n >= 1024 {
		return fmt.Sprintf("%s (%s)", value, render.Bytes(n))
	}
	return value
}
