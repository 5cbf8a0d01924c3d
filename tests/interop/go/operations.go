package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const sendTimeout = 10 * time.Second

var operations = map[string]func(Request) (any, error){
	"producer":      startProducer,
	"send":          send,
	"push_consumer": startPushConsumer,
	"admin":         startAdmin,
	"create_topic":  createTopic,
	"topic_route":   topicRoute,
	"stop":          stop,
}

type started struct {
	client any
	stop   func() error
}

var (
	clientsLock sync.Mutex
	clients     = map[string]started{}
)

func keep(handle string, client any, stop func() error) {
	clientsLock.Lock()
	defer clientsLock.Unlock()
	clients[handle] = started{client, stop}
}

func get[C any](handle string) (C, error) {
	clientsLock.Lock()
	defer clientsLock.Unlock()
	client, fits := clients[handle].client.(C)
	if !fits {
		return client, fmt.Errorf("no such client was started as %q", handle)
	}
	return client, nil
}

func stop(request Request) (any, error) {
	clientsLock.Lock()
	client, known := clients[request.Handle]
	delete(clients, request.Handle)
	clientsLock.Unlock()
	if !known {
		return false, nil
	}
	return true, client.stop()
}

func nameServers(request Request) []string {
	return strings.Split(request.Namesrv, ";")
}

func startProducer(request Request) (any, error) {
	retries := 2
	if request.Retries != nil {
		retries = *request.Retries
	}
	client, err := rocketmq.NewProducer(
		producer.WithNameServer(nameServers(request)),
		producer.WithGroupName(request.Group),
		producer.WithInstanceName(request.Handle),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithRetry(retries),
	)
	if err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	keep(request.Handle, client, client.Shutdown)
	return request.Handle, nil
}

func buildMessage(topic string, described MessageToSend) *primitive.Message {
	message := primitive.NewMessage(topic, []byte(described.Body))
	if described.Tags != "" {
		message.WithTag(described.Tags)
	}
	if described.Keys != "" {
		message.WithKeys([]string{described.Keys})
	}
	for name, value := range described.Properties {
		message.WithProperty(name, value)
	}
	return message
}

func send(request Request) (any, error) {
	client, err := get[rocketmq.Producer](request.Handle)
	if err != nil {
		return nil, err
	}
	messages := make([]*primitive.Message, len(request.Messages))
	for i, described := range request.Messages {
		messages[i] = buildMessage(request.Topic, described)
	}
	switch request.How {
	case "batch":
		result, err := client.SendSync(context.Background(), messages...)
		if err != nil {
			return nil, err
		}
		return describeResult(result), nil
	case "async":
		return sendAsync(client, messages)
	}
	results := make([]any, len(messages))
	for i, message := range messages {
		if request.How == "oneway" {
			if err := client.SendOneWay(context.Background(), message); err != nil {
				return nil, err
			}
			continue
		}
		result, err := client.SendSync(context.Background(), message)
		if err != nil {
			return nil, err
		}
		results[i] = describeResult(result)
	}
	return results, nil
}

func sendAsync(client rocketmq.Producer, messages []*primitive.Message) (any, error) {
	results := make([]any, len(messages))
	failures := make(chan error, len(messages))
	var pending sync.WaitGroup
	for i, message := range messages {
		i := i
		pending.Add(1)
		answered := func(_ context.Context, result *primitive.SendResult, err error) {
			defer pending.Done()
			if err != nil {
				failures <- err
				return
			}
			results[i] = describeResult(result)
		}
		if err := client.SendAsync(context.Background(), answered, message); err != nil {
			return nil, err
		}
	}
	pending.Wait()
	select {
	case err := <-failures:
		return nil, err
	default:
		return results, nil
	}
}

func describeResult(result *primitive.SendResult) object {
	status := fmt.Sprintf("status %d", result.Status)
	if result.Status == primitive.SendOK {
		status = "SEND_OK"
	}
	return object{
		"status":       status,
		"id":           result.MsgID,
		"offset_id":    result.OffsetMsgID,
		"topic":        result.MessageQueue.Topic,
		"broker":       result.MessageQueue.BrokerName,
		"queue_id":     result.MessageQueue.QueueId,
		"queue_offset": result.QueueOffset,
		"region":       result.RegionID,
	}
}

func startPushConsumer(request Request) (any, error) {
	model := consumer.Clustering
	if request.Model == "BROADCASTING" {
		model = consumer.BroadCasting
	}
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(nameServers(request)),
		consumer.WithGroupName(request.Group),
		consumer.WithInstance(request.Handle),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(request.Orderly),
	)
	if err != nil {
		return nil, err
	}
	expression := request.Expression
	if expression == "" {
		expression = "*"
	}
	consumed := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			tell(describeMessage(request.Handle, message))
		}
		return consumer.ConsumeSuccess, nil
	}
	for _, topic := range request.Topics {
		selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
		if err := client.Subscribe(topic, selector, consumed); err != nil {
			return nil, err
		}
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	keep(request.Handle, client, client.Shutdown)
	return request.Handle, nil
}

func describeMessage(handle string, message *primitive.MessageExt) object {
	digest := sha256.Sum256(message.Body)
	told := object{
		"event":        "message",
		"handle":       handle,
		"topic":        message.Topic,
		"queue_offset": message.QueueOffset,
		"id":           message.MsgId,
		"offset_id":    message.OffsetMsgId,
		"body":         string(message.Body),
		"body_bytes":   len(message.Body),
		"body_sha256":  hex.EncodeToString(digest[:]),
		"tags":         message.GetTags(),
		"keys":         message.GetKeys(),
		"properties":   message.GetProperties(),
	}
	if message.Queue != nil {
		told["broker"], told["queue_id"] = message.Queue.BrokerName, message.Queue.QueueId
	}
	return told
}

func startAdmin(request Request) (any, error) {
	resolver := primitive.NewPassthroughResolver(nameServers(request))
	client, err := admin.NewAdmin(admin.WithResolver(resolver))
	if err != nil {
		return nil, err
	}
	keep(request.Handle, client, client.Close)
	return nil, nil
}

func createTopic(request Request) (any, error) {
	client, err := get[admin.Admin](request.Handle)
	if err != nil {
		return nil, err
	}
	return nil, client.CreateTopic(
		context.Background(),
		admin.WithTopicCreate(request.Topic),
		admin.WithBrokerAddrCreate(request.Address),
		admin.WithReadQueueNums(request.Queues),
		admin.WithWriteQueueNums(request.Queues),
	)
}

// topicRoute returns the part of the route that this client shows: the brokers that accept messages.
func topicRoute(request Request) (any, error) {
	client, err := get[admin.Admin](request.Handle)
	if err != nil {
		return nil, err
	}
	queues, err := client.FetchPublishMessageQueues(context.Background(), request.Topic)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, queue := range queues {
		counts[queue.BrokerName]++
	}
	brokers := []object{}
	for broker, count := range counts {
		brokers = append(brokers, object{"broker": broker, "write_queues": count})
	}
	return object{"queues": brokers}, nil
}
