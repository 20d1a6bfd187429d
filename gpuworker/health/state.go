package health

import "fmt"

var stateNames = map[State]string{
	Starting: "starting", Ready: "ready", Degraded: "degraded", Draining: "draining", NotReady: "not ready",
}

// String is the state in words.
func (s State) String() string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return fmt.Sprintf("state %d", int(s))
}
