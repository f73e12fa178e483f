package sink

import "fmt"

// CodeError is a broker's answer that ends Write, because sending again would not help.
type CodeError struct {
	Code      int16
	Topic     string
	Partition int32
}

func (e *CodeError) Error() string {
	return fmt.Sprintf("sink: produce to %s-%d: code %d", e.Topic, e.Partition, e.Code)
}
