// The driver of Apache's Go client. It reads and writes the same JSON lines as the driver of the Java clients.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	internal "github.com/apache/rocketmq-client-go/v2/errors"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const requestBytesMax = 16 << 20

// Request is one line of the test: the operation, the client, and the arguments of all operations.
type Request struct {
	ID         int             `json:"id"`
	Do         string          `json:"do"`
	Handle     string          `json:"handle"`
	Namesrv    string          `json:"namesrv"`
	Group      string          `json:"group"`
	Topic      string          `json:"topic"`
	Topics     []string        `json:"topics"`
	Expression string          `json:"expression"`
	Model      string          `json:"model"`
	Orderly    bool            `json:"orderly"`
	Address    string          `json:"address"`
	Queues     int             `json:"queues"`
	How        string          `json:"how"`
	Messages   []MessageToSend `json:"messages"`
	Retries    *int            `json:"retries"`
}

// MessageToSend describes a message of a send.
type MessageToSend struct {
	Body       string            `json:"body"`
	Tags       string            `json:"tags"`
	Keys       string            `json:"keys"`
	Properties map[string]string `json:"properties"`
}

type object = map[string]any

var output sync.Mutex

func main() {
	tell(object{"event": "ready"})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 64<<10), requestBytesMax)
	for lines.Scan() {
		var request Request
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			fmt.Fprintln(os.Stderr, "not a request:", err)
			os.Exit(2)
		}
		go answer(request)
	}
}

func answer(request Request) {
	operation, known := operations[request.Do]
	if !known {
		operation = func(Request) (any, error) { return nil, fmt.Errorf("no such operation: %s", request.Do) }
	}
	result, err := operation(request)
	if err != nil {
		tell(object{"id": request.ID, "error": describeError(err)})
		return
	}
	tell(object{"id": request.ID, "result": result})
}

func describeError(err error) object {
	told := object{"class": fmt.Sprintf("%T", err), "code": nil, "message": err.Error()}
	var broker primitive.MQBrokerErr
	if errors.As(err, &broker) {
		told["code"], told["broker_code"] = broker.ResponseCode, broker.ResponseCode
	} else if errors.Is(err, internal.ErrTopicNotExist) {
		told["code"] = 17
	}
	return told
}

// tell writes one line; an event is written before the client gets the result.
func tell(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot tell:", err)
		return
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(text, '\n'))
}
